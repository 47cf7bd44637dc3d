"""Who may ask for what: without a key nothing but probes, and without keys nobody from outside."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import httpx
import openai
import pytest
from pydantic import SecretStr
from starlette.routing import Route

from router_service.api.app import create_app
from router_service.api.auth import PUBLIC_PATHS
from router_service.core.errors import ConfigError
from router_service.core.keys import hashed, new_key
from router_service.serving.access import Access, is_loopback, listening_host
from router_service.settings import KeySettings, ServerSettings, Settings
from tests.bodies import ASK, BODY, CHAT
from tests.fakes import FakeRouter
from tests.serving import Sandbox, served, wait_for

API, ADMIN = new_key(), new_key()
KEYS = KeySettings(api={"team-a": SecretStr(hashed(API))}, admin=SecretStr(ADMIN))


def with_keys(sandbox: Sandbox, keys: KeySettings) -> Settings:
    """Return settings of a gateway with these keys."""
    settings = Settings.sandbox(sandbox.base_url, list(FakeRouter().probabilities))
    return settings.model_copy(update={"keys": keys})


@pytest.fixture(scope="module")
def keyed(sandbox: Sandbox) -> Iterator[str]:
    """Serve a gateway with an API key and an admin key."""
    with served(create_app(with_keys(sandbox, KEYS), FakeRouter())) as url:
        yield url


def bearer(key: str) -> dict[str, str]:
    """Return the header that carries a key."""
    return {"authorization": f"Bearer {key}".strip()}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer(""),
        bearer("wrong"),
        bearer(API[:-1]),
        bearer(hashed(API)),
        {"authorization": API},
        {"authorization": f"Basic {API}"},
        {"x-api-key": "wrong"},
        {"host": "localhost/healthz?"},
        {"x-original-url": "/healthz", "x-forwarded-for": "127.0.0.1"},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", CHAT),
        ("GET", "/v1/models"),
        ("GET", "/v1/decisions/x"),
        ("GET", "/metrics"),
        ("GET", "/openapi.json"),
        ("GET", "/admin/status"),
        ("GET", "/"),
        ("GET", "/healthz/"),
        ("GET", "/healthz/../v1/models"),
        ("GET", "//healthz"),
        ("GET", "/HEALTHZ"),
    ],
)
def test_without_a_key_nothing_is_served(
    keyed: str, method: str, path: str, headers: dict[str, str]
) -> None:
    """Whatever is asked for, known or unknown, a request without a good key is 401."""
    response = httpx.request(method, keyed + path, json=BODY, headers=headers)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["code"] in {"missing_api_key", "invalid_api_key"}
    assert not any(value in response.text for value in headers.values() if len(value) > 10)


def test_every_route_is_guarded(sandbox: Sandbox) -> None:
    """No route of the app answers without a key but those that are meant to."""
    app = create_app(with_keys(sandbox, KEYS), FakeRouter())
    paths = {path.replace("{decision_id}", "x") for path in app.openapi()["paths"]}
    paths |= {route.path for route in app.routes if isinstance(route, Route)}
    with served(app) as url, httpx.Client(base_url=url) as http:
        answered = {path for path in paths if http.get(path).status_code != 401}
    assert answered == PUBLIC_PATHS
    assert "/metrics" in paths


@pytest.mark.parametrize("name", ["authorization", "api-key", "x-api-key"])
def test_keys_are_taken_as_clients_send_them(keyed: str, name: str) -> None:
    """OpenAI's, Azure's and Anthropic's headers are read, for either key."""
    for key in (API, ADMIN):
        value = f"bearer  {key}" if name == "authorization" else key
        assert httpx.get(f"{keyed}/v1/models", headers={name: value}).status_code == 200


@pytest.mark.parametrize("path", ["/metrics", "/openapi.json", "/admin/anything"])
def test_one_rule_for_metrics_and_administration(keyed: str, path: str) -> None:
    """The admin key opens all of them, an API key none."""
    refused = httpx.get(keyed + path, headers=bearer(API))
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "admin_key_needed")
    assert httpx.get(keyed + path, headers=bearer(ADMIN)).status_code in {200, 404}


def test_no_admin_key_means_no_administration(sandbox: Sandbox) -> None:
    """Where none is configured nobody has it, not even who has no key at all."""
    keys = KeySettings(api={"a": SecretStr(API)})
    with served(create_app(with_keys(sandbox, keys), FakeRouter())) as url:
        assert httpx.get(f"{url}/metrics", headers=bearer(API)).status_code == 403
        assert httpx.get(f"{url}/metrics").status_code == 401


def test_an_admin_key_alone_closes_the_api(sandbox: Sandbox) -> None:
    """One key, LiteLLM's master key, is enough to keep all others out."""
    keys = KeySettings(admin=SecretStr(ADMIN))
    with served(create_app(with_keys(sandbox, keys), FakeRouter())) as url:
        assert httpx.get(f"{url}/v1/models").status_code == 401
        assert httpx.get(f"{url}/v1/models", headers=bearer(ADMIN)).status_code == 200


def test_refusals_are_counted(keyed: str) -> None:
    """The metric knows why, and not with what."""
    httpx.get(f"{keyed}/v1/models", headers=bearer("who-tries-this"))
    text = httpx.get(f"{keyed}/metrics", headers=bearer(ADMIN)).text
    assert 'switchcraft_refused_callers_total{code="invalid_api_key"}' in text
    assert "who-tries-this" not in text


def test_the_openai_client_knows_what_happened(keyed: str) -> None:
    """It raises AuthenticationError for a wrong key, and is served with the right one."""
    with openai.OpenAI(base_url=f"{keyed}/v1", api_key="wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError, match="not one of this gateway"):
            client.models.list()
        right = client.with_options(api_key=API)
        right.chat.completions.create(model="switchcraft", messages=ASK)


def test_the_log_line_has_the_keys_name(keyed: str, caplog: pytest.LogCaptureFixture) -> None:
    """Who asked is told by name."""
    with caplog.at_level(logging.INFO, "switchcraft.request"):
        httpx.post(keyed + CHAT, json=BODY, headers=bearer(API))
        wait_for(lambda: caplog.records, "the line is written")
    assert "'key': 'team-a'" in str([vars(record) for record in caplog.records])


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"host": "localhost:8080"}, 200),
        ({"host": "[::1]:8080"}, 200),
        ({"host": "app.localhost"}, 200),
        ({"host": "127.0.0.1.evil.example"}, 403),
        ({"host": "evil.example:8080"}, 403),
        ({"host": "localhost@evil.example"}, 403),
        ({"host": ""}, 403),
        ({"origin": "http://localhost:3000", "sec-fetch-site": "cross-site"}, 200),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://[::"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "none"}, 200),
    ],
    ids=str,
)
def test_without_keys_web_pages_are_strangers(
    gateway_url: str, headers: dict[str, str], status: int
) -> None:
    """A page of another origin, or under a name bound to this machine, cannot use the gateway."""
    response = httpx.post(gateway_url + CHAT, json=BODY, headers=headers)
    assert response.status_code == status
    assert httpx.get(f"{gateway_url}/healthz", headers=headers).status_code == 200


def test_with_keys_any_host_is_served(keyed: str) -> None:
    """A key is what no page has: the gateway may have any name, and pages that send it."""
    headers = bearer(API) | {"host": "gateway.example", "origin": "https://app.example"}
    assert httpx.get(f"{keyed}/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("host", "expected"),
    [("0.0.0.0", "127.0.0.1"), ("::", "127.0.0.1"), ("::1", "::1"), ("localhost", "localhost")],
)
def test_without_keys_it_listens_on_loopback(
    host: str, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever address is asked for; the warning names what to set."""
    settings = Settings(server=ServerSettings(host=host))
    assert listening_host(settings) == expected
    assert "set keys.api or general_settings.master_key" in caplog.text


def test_a_weak_key_stays_at_home(caplog: pytest.LogCaptureFixture) -> None:
    """A key that can be guessed refuses to start on another address, and is warned of on this."""
    keys = KeySettings(api={"team-a": SecretStr("sk-1234")})
    outside = Settings(keys=keys, server=ServerSettings(host="0.0.0.0"))
    with pytest.raises(ConfigError, match=r"keys\.api\.team-a: .*switchcraft key") as caught:
        listening_host(outside)
    assert "sk-1234" not in str(caught.value)
    assert listening_host(Settings(keys=keys)) == "127.0.0.1"
    assert "keys.api.team-a" in caplog.text
    strong = Settings(keys=KEYS, server=ServerSettings(host="0.0.0.0"))
    assert listening_host(strong) == "0.0.0.0"


def test_loopback_names() -> None:
    """What is this machine's own, in any notation, and what only looks like it."""
    assert all(map(is_loopback, ("localhost", "LOCALHOST.", "127.9.9.9", "::1", "[::1]")))
    outside = ("", "0.0.0.0", "::", "10.0.0.1", "127.0.0.1.x.example", "localhost.example")
    assert not any(map(is_loopback, outside))


def test_an_empty_access_is_open_and_says_so() -> None:
    """Only where no key at all is configured."""
    assert Access.of(KeySettings()).is_open
    assert not Access.of(KeySettings(admin=SecretStr(ADMIN))).is_open
