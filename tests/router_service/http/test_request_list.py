"""The list of recent requests over HTTP: what is listed, to whom, and what is known of each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from router_service.core.keys import new_key
from router_service.serving.app import create_app
from router_service.settings import (
    BreakerSettings,
    DatabaseSettings,
    KeySettings,
    RetrySettings,
    ServerSettings,
    Settings,
    UpstreamSettings,
    UsageSettings,
)
from tests.bodies import BODY, CHAT
from tests.fakes import FakeRouter
from tests.serving import Sandbox, served, wait_for

ADMIN, ANNA, BOB = new_key(), new_key(), new_key()
KEYS = KeySettings(api={"anna": SecretStr(ANNA), "bob": SecretStr(BOB)}, admin=SecretStr(ADMIN))
NO_RETRIES = UpstreamSettings(
    retries=RetrySettings(max_retries=0), breaker=BreakerSettings(allowed_fails=1000)
)
PAGE = "/ui/api/traffic/requests"
API = "/v1/requests"
SMALL, *_, LARGE = FakeRouter().probabilities


def settings_of(sandbox: Sandbox, path: Path, **changes: object) -> Settings:
    """Return settings with two client keys and a database in this file."""
    settings = Settings.sandbox(sandbox.base_url, list(FakeRouter().probabilities))
    database = DatabaseSettings(url=SecretStr(f"sqlite:///{path}"))
    common = {"keys": KEYS, "database": database, "upstreams": NO_RETRIES}
    return settings.model_copy(update=common | changes)


def get(url: str, path: str = API, caller: str = ADMIN, **query: str) -> httpx.Response:
    """Return the answer to a request for a list."""
    return httpx.get(url + path, headers={"x-api-key": caller}, params=query)


def rows(url: str, caller: str = ADMIN, **query: str) -> list[dict[str, Any]]:
    """Return the requests in a list."""
    answer = get(url, caller=caller, **query)
    answer.raise_for_status()
    found: list[dict[str, Any]] = answer.json()["requests"]
    return found


def send(url: str, key: str, headers: dict[str, str] | None = None, **changes: object) -> int:
    """Send a request, and return the status of its answer."""
    all_headers = {"x-api-key": key} | (headers or {})
    return httpx.post(url + CHAT, json={**BODY, **changes}, headers=all_headers).status_code


@pytest.fixture(scope="module")
def busy(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve a gateway to which requests were sent that ended in many ways; yield its address."""
    path = tmp_path_factory.mktemp("requests") / "switchcraft.db"
    with served(create_app(settings_of(sandbox, path), FakeRouter())) as url:
        changes = {"name": "limited", "requests_per_minute": 1}
        created = httpx.post(f"{url}/admin/keys", json=changes, headers={"x-api-key": ADMIN})
        limited = created.json()["secret"]
        assert send(url, ANNA, {"x-request-id": "from-anna"}) == 200
        assert send(url, ANNA, model=SMALL) == 200
        assert send(url, BOB, messages=[]) == 400
        assert send(url, BOB, model="no-such-model") == 404
        assert send(url, BOB, {"x-switchcraft-policy": "theta=7"}) == 400
        assert [send(url, limited), send(url, limited)] == [200, 429]
        sandbox.set_faults(LARGE, "status=500")
        assert send(url, ANNA, model=LARGE) >= 500
        sandbox.set_faults(LARGE, "")
        assert get(url, "/v1/files").status_code == 404
        wait_for(lambda: len(rows(url)) == 9, "all requests are listed")
        yield url


@pytest.mark.parametrize(
    "path",
    [API, PAGE, f"{PAGE}/names", f"{PAGE}/x", "/ui/api/traffic/overview", "/ui/openapi.json"],
)
def test_lists_need_a_slot(sandbox: Sandbox, tmp_path: Path, path: str) -> None:
    """While other requests have all slots, what every key may read is refused at once."""
    server = ServerSettings(max_requests_in_flight=1)
    app = create_app(settings_of(sandbox, tmp_path / "test.db", server=server), FakeRouter())
    with served(app) as url:
        assert get(url, path, ANNA).status_code in {200, 404}
        with app.state.gateway.slots.slot("bob"):
            refused = get(url, path, ANNA)
            assert get(url, "/admin/keys").status_code == 200
        assert get(url, path, ANNA).status_code in {200, 404}
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")


def test_all_requests_are_listed(busy: str) -> None:
    """The list has answered, failed and refused requests, with what is known of each."""
    found = rows(busy)
    assert [row["time"] for row in found] == sorted((row["time"] for row in found), reverse=True)
    ended = [(row["key"], row["outcome"], row["status"], row["error"]) for row in found]
    assert sorted(ended, key=str) == sorted(
        [
            ("anna", "answered", 200, None),
            ("anna", "answered", 200, None),
            ("anna", "failed", 500, "status"),
            ("bob", "refused", 400, "empty_array"),
            ("bob", "refused", 404, "model_not_found"),
            ("bob", "refused", 400, "invalid_policy"),
            ("limited", "answered", 200, None),
            ("limited", "refused", 429, "rate_limit_exceeded"),
            ("admin", "refused", 404, "not_served"),
        ],
        key=str,
    )
    (routed,) = rows(busy, search="from-anna")
    assert routed["request_id"] == "from-anna"
    assert (routed["model"], routed["arm"]) == (routed["arm"], routed["model"])
    assert routed["policy"].startswith("theta=") or "(" in routed["policy"]
    assert routed["cost_usd"] is None or routed["cost_usd"] > 0
    assert 0 < routed["first_byte_s"] <= routed["latency_s"]
    assert routed["path"] == CHAT


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ({"key": "anna"}, 3),
        ({"outcome": "refused"}, 5),
        ({"outcome": "refused", "key": "bob"}, 3),
        ({"model": "none"}, 5),
        ({"model": LARGE, "outcome": "failed"}, 1),
        ({"reason": "pinned"}, 2),
        ({"search": "nothing"}, 0),
    ],
)
def test_filters(busy: str, query: dict[str, str], count: int) -> None:
    """Both lists, that of the API and that of the page, have the same filters."""
    assert len(rows(busy, **query)) == count
    assert len(get(busy, PAGE, **query).json()["requests"]) == count


def test_client_lists_its_own_requests(busy: str) -> None:
    """Neither a filter nor an id shows a client's key another key's request."""
    for query in ({}, {"key": "bob"}, {"team": "any"}):
        assert {row["key"] for row in rows(busy, ANNA, **query)} == {"anna"}
    (other,) = rows(busy, search="from-anna")
    assert get(busy, f"{PAGE}/{other['id']}", BOB).status_code == 404
    assert get(busy, f"{PAGE}/{other['id']}", ANNA).json()["request"] == other


def test_pages_follow_each_other(busy: str) -> None:
    """`older` and `newer` lead through the list, in pages of the wanted size."""
    every = [row["id"] for row in rows(busy)]
    first = get(busy, limit="4").json()
    second = get(busy, limit="4", before=first["older"]).json()
    third = get(busy, limit="4", before=second["older"]).json()
    pages = [first, second, third]
    assert [row["id"] for page in pages for row in page["requests"]] == every
    assert (first["newer"], third["older"]) == (None, None)
    assert get(busy, limit="4", after=third["newer"]).json() == second


@pytest.mark.parametrize(
    "query", [{"before": "x"}, {"after": "1"}, {"before": "1.a", "after": "1.a"}]
)
def test_invalid_positions_are_refused(busy: str, query: dict[str, str]) -> None:
    """The error names the parameter."""
    answer = get(busy, **query)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_value")
    assert answer.json()["error"]["param"] in query


def test_refused_request_has_no_decision(busy: str) -> None:
    """Its details say so, and have the row."""
    (row,) = rows(busy, key="limited", outcome="refused")
    details = get(busy, f"{PAGE}/{row['id']}").json()
    assert (details["request"], details["decision"]) == (row, None)
    assert "before the gateway chose a model" in details["missing"]


@pytest.mark.parametrize(
    ("usage", "setting"),
    [
        (UsageSettings(recent_requests=0), "usage.recent_requests"),
        (UsageSettings(enabled=False), "usage.enabled"),
    ],
)
def test_list_can_be_turned_off(
    sandbox: Sandbox, tmp_path: Path, usage: UsageSettings, setting: str
) -> None:
    """Then the API and the page name the setting, and details come from the store."""
    settings = settings_of(sandbox, tmp_path / "switchcraft.db", usage=usage)
    with served(create_app(settings, FakeRouter())) as url:
        answer = httpx.post(url + CHAT, json=BODY, headers={"x-api-key": ANNA})
        refused = get(url)
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "usage_disabled")
        assert setting in refused.json()["error"]["message"]
        assert setting in get(url, PAGE).json()["unavailable"]
        assert setting in get(url, f"{PAGE}/names").json()["unavailable"]
        path = f"{PAGE}/{answer.headers['x-switchcraft-decision-id']}"
        wait_for(lambda: get(url, path).is_success, "the decision is stored")
        details = get(url, path).json()
        assert (details["request"], details["missing"]) == (None, None)
        assert details["decision"]["key"] == "anna"
