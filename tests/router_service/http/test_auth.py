"""API keys, metrics and admin keys, and access of other sites' pages to a gateway without keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr
from starlette.routing import Route

from router_service.access.accounts import Accounts
from router_service.access.keyring import has_stored_keys, permitted_listen_host
from router_service.access.specs import NewKey
from router_service.core.keys import hashed
from router_service.database.engine import Database
from router_service.http.auth import PUBLIC_PATHS, is_page_file
from router_service.serving.app import create_app
from router_service.settings import DatabaseSettings, KeySettings, ServerSettings, Settings
from tests.bodies import BODY, CHAT
from tests.fakes import FakeRouter
from tests.serving import Sandbox, served

# Constants, because keys are part of the tests' ids, and workers must collect the same ids.
API, ADMIN, METRICS = (f"sk-switchcraft-{name:-<43}" for name in ("api", "admin", "metrics"))
KEYS = KeySettings(
    api={"team-a": SecretStr(hashed(API))},
    admin=SecretStr(ADMIN),
    metrics=SecretStr(hashed(METRICS)),
)


def with_keys(sandbox: Sandbox, keys: KeySettings) -> Settings:
    """Return the settings of a gateway with these keys."""
    settings = Settings.sandbox(sandbox.base_url, list(FakeRouter().probabilities))
    return settings.model_copy(update={"keys": keys})


@pytest.fixture(scope="module")
def keyed(sandbox: Sandbox) -> Iterator[str]:
    """Serve a gateway with an API key, an admin key and a metrics key."""
    with served(create_app(with_keys(sandbox, KEYS), FakeRouter())) as url:
        yield url


def bearer(key: str) -> dict[str, str]:
    """Return the header with a key."""
    return {"authorization": f"Bearer {key}".strip()}


HEADERS = [
    {},
    bearer("wrong"),
    bearer(API[:-1]),
    {"authorization": f"Basic {API}"},
    {"host": "localhost/healthz?"},
    {"x-original-url": "/healthz", "x-forwarded-for": "127.0.0.1"},
]
REQUESTS = [
    ("POST", CHAT),
    ("GET", "/v1/models"),
    ("GET", "/metrics"),
    ("GET", "/admin/status"),
    ("GET", "/ui/openapi.json"),
    ("GET", "/healthz/"),
    ("GET", "/healthz/../v1/models"),
    ("GET", "//healthz"),
]


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        # Only headers carry a key; the page's paths are checked separately.
        *((*request, headers) for request in (REQUESTS[0], REQUESTS[4]) for headers in HEADERS),
        # Headers that name another address could make a path a public one.
        *((*request, headers) for request in REQUESTS for headers in (HEADERS[0], HEADERS[-2])),
    ],
    ids=str,
)
def test_requests_without_valid_key_get_401(
    keyed: str, method: str, path: str, headers: dict[str, str]
) -> None:
    """Every request without a valid key gets 401, for known and unknown paths."""
    response = httpx.request(method, keyed + path, json=BODY, headers=headers)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["code"] in {"missing_api_key", "invalid_api_key"}
    assert not any(value in response.text for value in headers.values() if len(value) > 10)


def test_every_route_needs_a_key_except_probes(sandbox: Sandbox) -> None:
    """No route answers without a key, except the public ones and the files of the page."""
    app = create_app(with_keys(sandbox, KEYS), FakeRouter())
    paths = {path.replace("{decision_id}", "x") for path in app.openapi()["paths"]}
    paths |= {"/", "/docs", *(route.path for route in app.routes if isinstance(route, Route))}
    with served(app) as url, httpx.Client(base_url=url) as http:
        answered = {path for path in paths if http.get(path).status_code != 401}
    assert {path for path in answered if not is_page_file(path)} == PUBLIC_PATHS
    assert "/metrics" in paths


def test_metrics_key_opens_metrics_only(sandbox: Sandbox) -> None:
    """Every route refuses the metrics key with 403, except `/metrics` and the probes."""
    app = create_app(with_keys(sandbox, KEYS), FakeRouter())
    paths = {path.replace("{decision_id}", "x") for path in app.openapi()["paths"]}
    paths |= {route.path for route in app.routes if isinstance(route, Route)}
    paths |= {
        "/metrics/",
        "/Metrics",
        "/v1/files",
        "/admin/status",
        "/x",
        "/ui/api/x",
        "/ui/api/traffic/session",
    }
    paths = {path for path in paths if not is_page_file(path)}
    with served(app) as url, httpx.Client(base_url=url, headers=bearer(METRICS)) as http:
        assert http.get("/metrics").text.startswith("# HELP")
        assert http.post("/metrics").status_code == 405
        statuses = {
            (method, path): http.request(method, path, json=BODY).status_code
            for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD")
            for path in paths - PUBLIC_PATHS - {"/metrics"}
        }
        refused = http.post(CHAT, json=BODY).json()["error"]
    assert set(statuses.values()) == {403}
    assert refused["code"] == "metrics_key_only"


def test_keys_of_the_database_permit_other_machines(tmp_path: Path) -> None:
    """Without keys in the configuration, a gateway is reachable if its database has keys."""
    url = f"sqlite:///{tmp_path}/keys.db"
    settings = Settings(
        server=ServerSettings(host="0.0.0.0"), database=DatabaseSettings(url=SecretStr(url))
    )
    assert not has_stored_keys(settings)
    assert not (tmp_path / "keys.db").exists()
    database = Database(url)
    database.prepare()
    assert not has_stored_keys(settings)
    Accounts(database).create_key(NewKey(name="ops", is_admin=True))
    assert has_stored_keys(settings)
    database.close()
    assert has_stored_keys(settings)
    assert permitted_listen_host(settings) == "127.0.0.1"
    assert permitted_listen_host(settings, has_stored_keys=True) == "0.0.0.0"
    away = DatabaseSettings(url=SecretStr("postgresql://u:p@127.0.0.1:9/keys"))
    assert not has_stored_keys(Settings(database=away))


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"host": "127.0.0.1.evil.example"}, 403),
        ({"host": "localhost@evil.example"}, 403),
        ({"host": ""}, 403),
        ({"origin": "http://localhost:3000", "sec-fetch-site": "cross-site"}, 200),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
    ],
    ids=str,
)
def test_without_keys_foreign_web_pages_are_refused(
    gateway_url: str, headers: dict[str, str], status: int
) -> None:
    """A page of another origin, or under a name rebound to this machine, cannot use the gateway."""
    response = httpx.post(gateway_url + CHAT, json=BODY, headers=headers)
    assert response.status_code == status
    assert httpx.get(f"{gateway_url}/healthz", headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("host", "expected"),
    [("0.0.0.0", "127.0.0.1"), ("::", "127.0.0.1"), ("::1", "::1"), ("localhost", "localhost")],
)
def test_without_keys_gateway_listens_on_loopback(
    host: str, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Without keys, the gateway listens on loopback, and the warning names the setting."""
    settings = Settings(server=ServerSettings(host=host))
    assert permitted_listen_host(settings) == expected
    assert "set keys.api or general_settings.master_key" in caplog.text
