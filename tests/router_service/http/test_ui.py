"""The page's files and its JSON, over HTTP: what it is told, and what it is not."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest

from router_service.core.artifact import SHIPPED
from router_service.http.app import create_app
from router_service.requests.record import MAX_RECENT
from router_service.router import Router
from router_service.settings import ServerSettings, Settings
from router_service.ui.pages import FOLDER
from tests.bodies import BODY, CHAT
from tests.serving import Sandbox, served, wait_for

EXPLAIN = "/ui/api/explain"


@pytest.fixture(scope="module")
def shipped() -> Router:
    """Return the shipped router."""
    return Router.load(SHIPPED)


@pytest.fixture(scope="module")
def real(sandbox: Sandbox, shipped: Router) -> Iterator[httpx.Client]:
    """Yield a client of a gateway that decides by the shipped artifact."""
    server = ServerSettings(max_body_bytes=100_000)
    settings = Settings.sandbox(sandbox.base_url, list(shipped.arms), server=server)
    with served(create_app(settings, shipped)) as url, httpx.Client(base_url=url) as client:
        yield client


def test_the_page_and_its_files_may_do_no_more_than_they_need(http: httpx.Client) -> None:
    """Each file is of its type, may load nothing foreign, and is asked for again at each visit."""
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


def test_no_file_names_another_host() -> None:
    """Nothing is loaded from elsewhere, and nothing stands in a document that its policy bars."""
    for path in FOLDER.rglob("*"):
        if path.suffix not in {".html", ".css", ".js"}:
            continue
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|@import|innerHTML|eval\(| style=| on\w+=\"", text), path


def test_a_path_stays_within_the_files(http: httpx.Client) -> None:
    """No address leads out of the folder."""
    for path in ("..%2fui.py", "%2e%2e/index.html", "../../api/ui.py", "", "absent.js"):
        assert http.get(f"/ui/static/{path}").status_code in {404, 405}


def test_a_slash_leads_to_the_page(http: httpx.Client) -> None:
    """Whatever prefix the gateway stands behind: the address is relative."""
    response = http.get("/ui/")
    assert (response.status_code, response.headers["location"]) == (308, "../ui")


def test_an_explanation_is_what_the_gateway_does(real: httpx.Client, shipped: Router) -> None:
    """Arm, reason and order are those of the same request sent for good; nothing is sent."""
    explained = real.post(EXPLAIN, json=BODY).json()
    answer = real.post(CHAT, json=BODY)
    assert explained["candidates"][0] == answer.headers["x-switchcraft-model"]
    assert explained["reason"] == answer.headers["x-switchcraft-reason"]
    assert explained["chosen"]["policy"] == answer.headers["x-switchcraft-policy"]
    assert {arm["arm"] for arm in explained["arms"]} == set(shipped.arms)
    costs = [arm["cost_usd"] for arm in explained["arms"]]
    assert costs == sorted(costs)


def test_the_choices_follow_the_frontier(real: httpx.Client) -> None:
    """There is one for each measured policy, and it is what a request for that policy gets."""
    explained = real.post(EXPLAIN, json=BODY).json()
    frontier = real.get("/ui/api/artifact").json()["frontier"]
    policies = [point["policy"] for point in frontier]
    assert [choice["policy"] for choice in explained["choices"]] == policies
    for choice in explained["choices"][::12]:
        asked = real.post(EXPLAIN, json=BODY, params={"policy": choice["policy"]}).json()
        assert asked["chosen"] == choice


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({**BODY, "tools": []}, "chat"),
        ({**BODY, "model": "gpt-4o-2024-08-06-FC"}, "pinned"),
        ({**BODY, "tools": [*BODY["tools"], {"type": "function"}]}, "unread"),
    ],
)
def test_what_the_gateway_decides_itself_is_told(
    real: httpx.Client, body: dict[str, object], reason: str
) -> None:
    """Its reason stands there, beside what the router would have chosen."""
    explained = real.post(EXPLAIN, json=body).json()
    assert explained["reason"] == reason
    assert explained["chosen"]["arm"]
    assert bool(explained["unread"]) == (reason == "unread")


def test_a_responses_body_is_read_as_one(real: httpx.Client) -> None:
    """The API is named in the query."""
    body = {"model": "switchcraft", "input": "hello", "tools": [{"type": "web_search"}]}
    explained = real.post(EXPLAIN, json=body, params={"api": "responses"}).json()
    assert "hello" in {piece["text"] for piece in explained["view"]["pieces"]}


@pytest.mark.parametrize(
    ("content", "params", "status", "code"),
    [
        (b"{", {}, 400, None),
        (b"{}", {}, 400, "missing_required_parameter"),
        (b'{"model": "no-such", "messages": [{"role": "user"}]}', {}, 404, "model_not_found"),
        (b" " * 100_001, {}, 413, None),
        (b"{}", {"api": "other"}, 422, None),
    ],
)
def test_a_bad_request_has_a_readable_error(
    real: httpx.Client, content: bytes, params: dict[str, str], status: int, code: str | None
) -> None:
    """The same refusals as of the API, in OpenAI's form."""
    response = real.post(EXPLAIN, content=content, params=params)
    error = response.json()["error"]
    assert response.status_code == status
    assert error["message"]
    assert code in {None, error["code"]}


def test_an_unknown_policy_is_refused(real: httpx.Client) -> None:
    """As the header's is."""
    response = real.post(EXPLAIN, json=BODY, params={"policy": "theta=7"})
    assert (response.status_code, response.json()["error"]["param"]) == (
        400,
        "x-switchcraft-policy",
    )


def test_recent_decisions_are_told_without_what_was_said(real: httpx.Client) -> None:
    """A request stands at the top, its details behind it, and its text nowhere."""
    answer = real.post(CHAT, json=BODY)
    decision_id = answer.headers["x-switchcraft-decision-id"]

    def newest() -> str:
        return str(real.get("/ui/api/recent").json()["decisions"][0]["id"])

    wait_for(lambda: newest() == decision_id, "the decision is there")
    details = real.get(f"/ui/api/recent/{decision_id}")
    assert sum(details.json()["probabilities"].values()) > 0
    said = BODY["messages"][-1]["content"]
    assert said not in details.text + real.get("/ui/api/recent").text


def test_nothing_new_is_not_sent_again(real: httpx.Client) -> None:
    """A tag stands for what was there; the next decision makes another."""
    wait_for(lambda: real.get("/ui/api/recent").json()["decisions"], "there is one")
    tag = real.get("/ui/api/recent").headers["etag"]
    same = {"if-none-match": tag}
    assert real.get("/ui/api/recent", headers=same).status_code == 304
    real.post(CHAT, json=BODY)
    wait_for(lambda: real.get("/ui/api/recent", headers=same).status_code == 200, "it is another")


def test_an_unknown_decision_is_404(http: httpx.Client) -> None:
    """With a body that says so."""
    response = http.get("/ui/api/recent/dec_unknown")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")


def test_only_the_newest_are_kept(http: httpx.Client) -> None:
    """The list has a bound, whatever comes."""
    for _ in range(MAX_RECENT + 5):
        http.post(CHAT, json={**BODY, "tools": None})
    wait_for(
        lambda: len(http.get("/ui/api/recent").json()["decisions"]) == MAX_RECENT, "it is full"
    )


def test_asking_goes_through_the_gateway(real: httpx.Client) -> None:
    """The button's answer is a request's like any other: decided, headed, and recorded."""
    headers = {"x-switchcraft-policy": "theta=0.99"}
    answer = real.post("/ui/api/ask/chat", json=BODY, headers=headers)
    assert answer.json()["choices"]
    assert answer.headers["x-switchcraft-policy"] == "theta=0.99"
    assert answer.headers["x-switchcraft-decision-id"].startswith("dec_")
