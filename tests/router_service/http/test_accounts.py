"""The admin API of keys and teams over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from pydantic import SecretStr

from router_service.core.keys import hashed, new_key
from router_service.serving.app import create_app
from router_service.settings import DatabaseSettings, KeySettings, Settings
from tests.bodies import BODY, CHAT
from tests.fakes import PROBABILITIES, FakeRouter
from tests.serving import Sandbox, served

ADMIN, CLIENT = new_key(), new_key()
KEYS = KeySettings(api={"configured": SecretStr(hashed(CLIENT))}, admin=SecretStr(hashed(ADMIN)))


@contextmanager
def gateway(sandbox: Sandbox, keys: KeySettings = KEYS) -> Iterator[httpx.Client]:
    """Serve a gateway with a database in memory; yield a client with the admin key."""
    changes = {"keys": keys, "database": DatabaseSettings()}
    settings = Settings.sandbox(sandbox.base_url, list(PROBABILITIES)).model_copy(update=changes)
    headers = {"authorization": f"Bearer {ADMIN}"}
    with (
        served(create_app(settings, FakeRouter())) as address,
        httpx.Client(base_url=address, headers=headers) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def admin(sandbox: Sandbox) -> Iterator[httpx.Client]:
    """Yield a client with the admin key of a gateway with a database in memory."""
    with gateway(sandbox) as client:
        yield client


def create(client: httpx.Client, kind: str = "keys", **fields: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """Create a key or a team, and return the answer."""
    response = client.post(f"/admin/{kind}", json=fields)
    assert response.status_code == 201, response.text
    answer: dict[str, Any] = response.json()
    return answer


def error(response: httpx.Response) -> tuple[int, str, str | None]:
    """Return status, code and parameter of an error in OpenAI's format."""
    fault = response.json()["error"]
    assert fault.keys() == {"message", "type", "param", "code"}
    assert fault["type"] == "invalid_request_error"
    return response.status_code, fault["code"], fault["param"]


def test_answers_of_the_admin_api_are_stored_nowhere(admin: httpx.Client) -> None:
    """New secrets, the other answers and errors tell browsers and proxies not to keep them."""
    answers = [
        admin.post("/admin/keys", json={"name": "unstored"}),
        admin.post("/admin/keys/unstored/rotate", json={}),
        admin.get("/admin/keys"),
        admin.get("/admin/nothing"),
        admin.post("/admin/keys", headers={"authorization": "Bearer x"}),
    ]
    assert [answer.status_code for answer in answers] == [201, 200, 200, 404, 401]
    assert {answer.headers.get("cache-control") for answer in answers} == {"no-store"}


@pytest.mark.parametrize("name", ["a/b?c#d", "a/../rotate", "💸 & %2F;+"])
def test_names_in_paths_are_percent_encoded(admin: httpx.Client, name: str) -> None:
    """Every name that a key may have can be part of a path."""
    encoded = quote(name, safe="")
    create(admin, "teams", name=name)
    create(admin, name=name, team=name)
    assert admin.get(f"/admin/keys/{encoded}").json()["name"] == name
    assert admin.get("/admin/keys", params={"team": name}).json()["total"] == 1
    assert admin.post(f"/admin/keys/{encoded}/rotate").json()["key"]["name"] == name
    assert admin.delete(f"/admin/keys/{encoded}").json()["status"] == "revoked"
    assert admin.patch(f"/admin/teams/{encoded}", json={"owner": "x"}).json()["owner"] == "x"
    assert admin.delete(f"/admin/teams/{encoded}").status_code == 204
    assert error(admin.get(f"/admin/teams/{encoded}")) == (404, "team_not_found", "name")


def test_conflicts_and_unknown_names(admin: httpx.Client) -> None:
    """Errors have OpenAI's format, with a status and a code that programs can use."""
    create(admin, "teams", name="conflicts")
    create(admin, name="conflicts", team="conflicts")
    for name in ("conflicts", "configured", "admin"):
        taken = admin.post("/admin/keys", json={"name": name})
        assert error(taken) == (409, "name_taken", "name")
    assert error(admin.delete("/admin/teams/conflicts")) == (409, "team_has_keys", None)
    admin.delete("/admin/keys/conflicts")
    rotated = admin.post("/admin/keys/conflicts/rotate", json={})
    assert error(rotated) == (409, "key_revoked", "name")
    for method, path in [
        *(("GET", "/admin/keys/x"), ("PATCH", "/admin/keys/x"), ("DELETE", "/admin/keys/x%00")),
        *(("POST", "/admin/keys/x/rotate"), ("POST", "/admin/keys/x/revoke")),
    ]:
        response = admin.request(method, path, json={})
        assert error(response) == (404, "key_not_found", "name")
    unknown = admin.post("/admin/keys", json={"name": "y", "team": "nobody"})
    assert error(unknown) == (400, "team_not_found", "team")


def test_first_key_closes_an_open_gateway(sandbox: Sandbox) -> None:
    """Without keys everyone may create the first key, which must be an admin key."""
    with gateway(sandbox, keys=KeySettings()) as client:
        del client.headers["authorization"]
        first = client.post("/admin/keys", json={"name": "a"})
        assert error(first) == (409, "admin_key_needed", "is_admin")
        secret = create(client, name="ops", is_admin=True)["secret"]
        assert client.get("/admin/keys").status_code == 401
        assert client.post(CHAT, json=BODY).status_code == 401
        client.headers["authorization"] = f"Bearer {secret}"
        assert client.get("/admin/keys").json()["total"] == 1
        client.delete("/admin/keys/ops")
        assert client.get("/admin/keys").status_code == 401, "the gateway stays closed"
