"""The web page's files, its JSON API over HTTP, and who may open it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import httpx
import pytest
from pydantic import SecretStr

from router_service.core.keys import new_key
from router_service.router import Router
from router_service.serving.app import create_app
from router_service.settings import KeySettings, Settings
from router_service.ui.verified_steps import MAX_HEADER, STEPS_HEADER
from tests.bodies import BODY, CHAT
from tests.fakes import FakeRouter
from tests.gateways import VERIFIED, VerifyingGateway, gateway_client
from tests.serving import Sandbox, served, wait_for

REQUESTS = "/ui/api/traffic/requests"


def test_page_files_have_restrictive_headers(http: httpx.Client) -> None:
    """Each file has its type, may load nothing foreign, and is revalidated at each visit."""
    page = http.get("/ui")
    files = re.findall(r'(?:src|href)="(ui/[^"]+)"', page.text)
    assert len(files) >= 5
    for response in [page, *(http.get(f"/{file}") for file in files)]:
        assert response.status_code == 200, response.url
        assert "default-src 'self'" in response.headers["content-security-policy"]
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["cache-control"] == "private, no-cache"
        assert "strict-transport-security" not in response.headers
    tag = http.get("/ui/static/app.js").headers["etag"]
    again = http.get("/ui/static/app.js", headers={"if-none-match": tag})
    assert (again.status_code, again.content) == (304, b"")


def test_card_describes_the_mapped_arms(sandbox: Sandbox, shipped: Router) -> None:
    """With two of eight arms, the card has only these arms and their figures, and goals work."""
    arms = shipped.arms[:2]
    settings = Settings.sandbox(sandbox.base_url, arms)
    router = Router(shipped.artifact, arms=arms, relatives=[shipped])
    with gateway_client(settings, router) as client:
        before = shipped.artifact.manifest.named_rules["economy"]

        def has_measured() -> bool:
            rules = {
                each["name"]: each["rule"] for each in client.get("/v1/policies").json()["data"]
            }
            return bool(rules["economy"] != before)

        wait_for(has_measured, "the rules of goals are those of the two arms")
        card = client.get("/ui/api/artifact").json()
        assert {arm["arm"] for arm in card["arms"]} == set(arms)
        assert card["metrics"] != shipped.artifact.manifest.model_dump(mode="json")["metrics"]
        dearest = card["metrics"]["best_single_cost_usd"]["value"] * 5
        assert max(point["cost_usd"]["value"] for point in card["frontier"]) < dearest
        assert card["verified_policy"]
        listed = client.get("/v1/policies").json()
        both = (*card["frontier"], *card["verified_frontier"])
        points = {point["policy"]: point for point in both}
        for policy in listed["data"]:
            assert policy["measured"] == points.get(policy["rule"])
        named = {policy["name"]: policy for policy in listed["data"]}
        assert set(named) == {"fast", "economy", "balanced", "quality", "verified"}
        assert named["fast"]["goal"] == "accuracy=best-2.5"
        assert all(policy["measured"] for policy in listed["data"])
        assert listed["default"] == named["balanced"]["rule"]
        for goal in ("accuracy=best", "usd_per_1k=6"):
            answer = client.post(CHAT, json=BODY, headers={"x-switchcraft-policy": goal})
            assert answer.status_code == 200, answer.text
            rules = [point["policy"] for point in both]
            assert answer.headers["x-switchcraft-policy"] in {f"{goal} ({rule})" for rule in rules}


API, ADMIN = new_key(), new_key()
KEYS = KeySettings(api={"team-a": SecretStr(API)}, admin=SecretStr(ADMIN))


@pytest.fixture(scope="module")
def keyed(sandbox: Sandbox) -> Iterator[str]:
    """Serve a gateway with an API key and an admin key."""
    settings = Settings.sandbox(sandbox.base_url, list(FakeRouter().probabilities))
    app = create_app(settings.model_copy(update={"keys": KEYS}), FakeRouter())
    with served(app) as url:
        yield url


def bearer(key: str) -> dict[str, str]:
    """Return the header that the page sends for a key."""
    return {"x-api-key": key}


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "artifact"), ("POST", "explain"), ("POST", "ask/chat")]
)
def test_client_key_opens_only_its_traffic(keyed: str, method: str, path: str) -> None:
    """A client's key gets 403 for the views of the router and of the pool."""
    refused = httpx.request(method, f"{keyed}/ui/api/{path}", json=BODY, headers=bearer(API))
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "admin_key_needed")


FOLLOWED = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        (REQUESTS, {"sec-fetch-site": "same-origin"}, 200),
        (REQUESTS, {"sec-fetch-site": "none"}, 200),
        (REQUESTS, {"sec-fetch-site": "cross-site"}, 403),
        (REQUESTS, {"origin": "https://evil.example"}, 403),
        (REQUESTS, FOLLOWED | {"sec-fetch-dest": "document"}, 403),
        ("/ui", FOLLOWED | {"sec-fetch-dest": "document"}, 200),
        ("/ui", FOLLOWED | {"sec-fetch-dest": "iframe"}, 403),
        ("/ui", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, 403),
    ],
    ids=str,
)
def test_foreign_sites_cannot_use_a_gateway_without_keys(
    gateway_url: str, path: str, headers: dict[str, str], status: int
) -> None:
    """A link to the page works; any other request of a foreign site's page is refused."""
    assert httpx.get(gateway_url + path, headers=headers).status_code == status


def test_no_other_answer_has_steps(house: VerifyingGateway) -> None:
    """Calls of API clients are neither in their headers nor in anything that the page reads."""
    answer, http = house.ask(), house.http
    assert STEPS_HEADER not in answer.headers
    path = f"{REQUESTS}/{answer.headers['x-switchcraft-decision-id']}"

    def is_listed() -> bool:
        detail = http.get(path)
        return detail.is_success and bool(detail.json()["request"])

    wait_for(is_listed, "the request is listed")
    assert http.get(path).json()["request"]["candidates"] == 3
    assert "get_weather" not in http.get(path).text + http.get(REQUESTS).text


@pytest.mark.parametrize("text", ["x" * 3_000, "\N{SNOWMAN}\x7f\r\n" * 1_000])
def test_steps_fit_into_a_header(house: VerifyingGateway, text: str) -> None:
    """Long arguments are shortened until the header is short enough for proxies."""
    parameters = {"properties": {"words": {"enum": [text]}}, "required": ["words"]}
    tool = {"type": "function", "function": {"name": "say", "parameters": parameters}}
    body = {**BODY, "tools": [tool]}
    answer = house.http.post("/ui/api/ask/chat", json=body, headers=VERIFIED)
    (call,) = answer.json()["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"words": text}
    assert len(answer.headers[STEPS_HEADER]) <= MAX_HEADER
    assert len(json.loads(answer.headers[STEPS_HEADER])) == 3


def test_explanation_matches_the_gateways_decision(sandbox: Sandbox, shipped: Router) -> None:
    """Arm, reason and order match the same request when it is sent; explaining sends nothing."""
    with gateway_client(Settings.sandbox(sandbox.base_url, list(shipped.arms)), shipped) as real:
        explained = real.post("/ui/api/explain", json=BODY, params={"policy": "drift=0.05"}).json()
        answer = real.post(CHAT, json=BODY, headers={"x-switchcraft-policy": "drift=0.05"})
    assert explained["candidates"][0] == answer.headers["x-switchcraft-model"]
    assert explained["reason"] == answer.headers["x-switchcraft-reason"]
    assert explained["chosen"]["policy"] == answer.headers["x-switchcraft-policy"]
    assert {arm["arm"] for arm in explained["arms"]} == set(shipped.arms)
    costs = [arm["cost_usd"] for arm in explained["arms"]]
    assert costs == sorted(costs)
