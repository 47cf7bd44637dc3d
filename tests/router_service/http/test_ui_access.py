"""Access to the web page: the admin key as the browser's password, and no foreign sites."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import httpx
import pytest
from pydantic import SecretStr

from router_service.core.keys import new_key
from router_service.http.app import create_app
from router_service.settings import KeySettings, Settings
from tests.bodies import CHAT
from tests.fakes import FakeRouter
from tests.serving import Sandbox, served

API, ADMIN = new_key(), new_key()
KEYS = KeySettings(api={"team-a": SecretStr(API)}, admin=SecretStr(ADMIN))


@pytest.fixture(scope="module")
def keyed(sandbox: Sandbox) -> Iterator[str]:
    """Serve a gateway with an API key and an admin key."""
    settings = Settings.sandbox(sandbox.base_url, list(FakeRouter().probabilities))
    app = create_app(settings.model_copy(update={"keys": KEYS}), FakeRouter())
    with served(app) as url:
        yield url


def basic(password: str) -> dict[str, str]:
    """Return the header that a browser sends for a password."""
    return {"authorization": "Basic " + base64.b64encode(f"me:{password}".encode()).decode()}


PATHS = ("/ui", "/ui/", "/ui/static/app.js", "/ui/api/recent", "/ui/api/artifact", "/ui/none")


@pytest.mark.parametrize("path", PATHS)
def test_browser_is_prompted_for_the_admin_key(keyed: str, path: str) -> None:
    """Without the admin key, the browser is prompted; with it, the page opens."""
    for headers in ({}, basic("wrong"), basic(API), {"authorization": "Basic %%%"}):
        refused = httpx.get(keyed + path, headers=headers)
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"].startswith('Basic realm="Switchcraft"')
        assert refused.json()["error"]["code"] in {"missing_api_key", "invalid_api_key"}
    bearer = {"authorization": f"Bearer {ADMIN}"}
    for headers in (basic(ADMIN), bearer):
        assert httpx.get(keyed + path, headers=headers).status_code in {200, 308, 404}


@pytest.mark.parametrize("path", [CHAT, "/metrics", "/admin/status", "/uix", "/UI"])
def test_password_opens_only_the_page(keyed: str, path: str) -> None:
    """The password that browsers send automatically is not a key for other paths."""
    response = httpx.get(keyed + path, headers=basic(ADMIN))
    assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")


def test_without_admin_key_page_is_refused(sandbox: Sandbox) -> None:
    """An API key gets an error that says what to configure."""
    settings = Settings.sandbox(sandbox.base_url, list(FakeRouter().probabilities))
    keys = KeySettings(api={"a": SecretStr(API)})
    with served(create_app(settings.model_copy(update={"keys": keys}), FakeRouter())) as url:
        refused = httpx.get(f"{url}/ui", headers=basic(API))
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "admin_key_needed")


FOLLOWED = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/ui/api/recent", {"sec-fetch-site": "same-origin"}, 200),
        ("/ui/api/recent", {"sec-fetch-site": "none"}, 200),
        ("/ui/api/recent", {"sec-fetch-site": "cross-site"}, 403),
        ("/ui/api/recent", {"sec-fetch-site": "same-site"}, 403),
        ("/ui/api/recent", {"origin": "https://evil.example"}, 403),
        ("/ui/api/recent", {"origin": "null"}, 403),
        ("/ui/api/recent", {"origin": "http://[::"}, 403),
        ("/ui/api/recent", FOLLOWED | {"sec-fetch-dest": "document"}, 403),
        ("/ui", FOLLOWED | {"sec-fetch-dest": "document"}, 200),
        ("/ui", FOLLOWED | {"sec-fetch-dest": "iframe"}, 403),
        ("/ui", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, 403),
    ],
    ids=str,
)
def test_foreign_sites_cannot_use_stored_password(
    keyed: str, gateway_url: str, path: str, headers: dict[str, str], status: int
) -> None:
    """A link to the page works; any other request of a foreign site's page is refused."""
    assert httpx.get(keyed + path, headers=headers | basic(ADMIN)).status_code == status
    assert httpx.get(gateway_url + path, headers=headers).status_code == status
