"""What the gateway tells of past requests, and to whom: lists, the page's overview, and usage."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from router_service.core.keys import new_key
from router_service.policies.costs import Price
from router_service.serving.app import create_app
from router_service.settings import (
    DatabaseSettings,
    KeySettings,
    ServerSettings,
    Settings,
    UsageSettings,
)
from router_service.ui.traffic import MIN_POINTS
from tests.bodies import BODY, CHAT
from tests.fakes import FakeRouter
from tests.serving import ONE_TRY, Sandbox, served, wait_for

FORMULA = '=1+1,"x"'
SECRETS = {name: new_key() for name in ("admin", "anna", "bob", FORMULA)}
KEYS = KeySettings(
    api={name: SecretStr(key) for name, key in SECRETS.items() if name != "admin"},
    admin=SecretStr(SECRETS["admin"]),
)
SMALL, *_, LARGE = FakeRouter().probabilities
API, PAGE, OVERVIEW = "/v1/requests", "/ui/api/traffic/requests", "/ui/api/traffic/overview"
USAGE = "/admin/usage"


def settings_of(sandbox: Sandbox, path: Path, **changes: object) -> Settings:
    """Return settings with client keys, a dearer baseline model, and a database in this file."""
    arms = list(FakeRouter().probabilities)
    settings = Settings.sandbox(sandbox.base_url, arms, upstreams=ONE_TRY)
    price = {
        arm: Price(input_usd_per_mtok=usd, output_usd_per_mtok=2 * usd)
        for arm, usd in zip(arms, (1, 1, 10), strict=True)
    }
    models = tuple(m.model_copy(update={"price": price[m.name]}) for m in settings.models)
    router = settings.router.model_copy(update={"baseline_model": LARGE})
    database = DatabaseSettings(url=SecretStr(f"sqlite:///{path}"))
    common = {"models": models, "router": router, "keys": KEYS, "database": database}
    return settings.model_copy(update=common | changes)


def get(url: str, path: str = API, caller: str = "admin", **query: Any) -> httpx.Response:  # noqa: ANN401
    """Return the answer to a request of a key."""
    return httpx.get(url + path, headers={"x-api-key": SECRETS[caller]}, params=query)


def rows(url: str, caller: str = "admin", **query: str) -> list[dict[str, Any]]:
    """Return the requests in a list."""
    answer = get(url, caller=caller, **query)
    answer.raise_for_status()
    found: list[dict[str, Any]] = answer.json()["requests"]
    return found


def overview(url: str, caller: str = "admin", **query: str) -> dict[str, Any]:
    """Return the page's overview."""
    found: dict[str, Any] = get(url, OVERVIEW, caller, **query).json()
    return found


def send(
    url: str, key: str, headers: Mapping[str, str] | None = None, **changes: object
) -> httpx.Response:
    """Send a request with a key, or with a secret."""
    sent = {"x-api-key": SECRETS.get(key, key), **(headers or {})}
    return httpx.post(url + CHAT, json=BODY | changes, headers=sent)


@pytest.fixture(scope="module")
def busy(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve a gateway to which requests were sent that ended in many ways; yield its address.

    It was restarted after the first one.
    """
    settings = settings_of(sandbox, tmp_path_factory.mktemp("requests") / "switchcraft.db")
    with served(create_app(settings, FakeRouter())) as url:
        assert send(url, "anna", {"x-request-id": "from-anna"}).status_code == 200
    with served(create_app(settings, FakeRouter())) as url:
        created = httpx.post(
            f"{url}/admin/keys",
            json={"name": "limited", "requests_per_minute": 1},
            headers={"x-api-key": SECRETS["admin"]},
        )
        limited = created.json()["secret"]
        assert send(url, "anna", model=SMALL).status_code == 200
        assert send(url, "bob", messages=[]).status_code == 400
        assert send(url, "bob", model="no-such-model").status_code == 404
        assert send(url, FORMULA).status_code == 200
        assert [send(url, limited).status_code for _ in range(2)] == [200, 429]
        failed = {"x-sandbox": "status=500"}
        assert send(url, "anna", failed, model=LARGE).status_code == 500
        assert get(url, "/v1/files").status_code == 404
        wait_for(lambda: len(rows(url)) == 9, "all requests are listed")
        wait_for(lambda: overview(url)["total"]["requests"] == 9, "usage is written")
        yield url


@pytest.mark.parametrize("path", [API, PAGE, f"{PAGE}/x", OVERVIEW])
def test_lists_need_a_slot(sandbox: Sandbox, tmp_path: Path, path: str) -> None:
    """While other requests have all slots, what every key may read is refused at once."""
    server = ServerSettings(max_requests_in_flight=1)
    app = create_app(settings_of(sandbox, tmp_path / "test.db", server=server), FakeRouter())
    with served(app) as url:
        assert get(url, path, "anna").status_code in {200, 404}
        with app.state.gateway.slots.take("bob"):
            refused = get(url, path, "anna")
            assert get(url, "/admin/keys").status_code == 200
        assert get(url, path, "anna").status_code in {200, 404}
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")


def test_disabled_lists_say_what_enables_them(sandbox: Sandbox, tmp_path: Path) -> None:
    """Without records of usage, the API answers with 404, and the page says what to set."""
    usage = UsageSettings(enabled=False)
    with served(
        create_app(settings_of(sandbox, tmp_path / "db", usage=usage), FakeRouter())
    ) as url:
        answer = get(url)
        assert answer.status_code == 404
        error = answer.json()["error"]
        assert error["code"] == "usage_disabled"
        assert "usage.enabled: true" in error["message"]
        assert get(url, PAGE).json() == {"unavailable": error["message"]}


def test_client_sees_its_own_requests(busy: str) -> None:
    """Neither a filter nor an id nor a cached list shows a client's key another key's request."""
    for query in ({}, {"key": "bob"}, {"team": "any"}):
        assert {row["key"] for row in rows(busy, "anna", **query)} == {"anna"}
        assert overview(busy, "anna", **query)["total"]["requests"] == 3
        assert overview(busy, "anna", **query)["keys"] == []
    (other,) = rows(busy, search="from-anna")
    assert get(busy, f"{PAGE}/{other['id']}", "bob").status_code == 404
    assert get(busy, f"{PAGE}/{other['id']}", "anna").json()["request"] == other
    assert get(busy, f"{PAGE}/names", "anna").json()["keys"] == ["anna"]
    tags = {get(busy, PAGE, caller).headers["etag"] for caller in ("admin", "anna", "bob")}
    assert len(tags) == 3
    assert get(busy, USAGE, "anna").status_code == 403


def test_pages_of_a_report_have_every_row_once(busy: str) -> None:
    """Pages of one row, each read with `next` of the one before, are the whole report."""
    whole = get(busy, USAGE, by="key").json()["rows"]
    assert len(whole) > 1
    found, after = [], 0
    while after is not None:
        page = get(busy, USAGE, by="key", limit="1", after=f"{after}").json()
        found += page["rows"]
        after = page["next"]
    assert found == whole


@pytest.mark.parametrize(
    ("path", "query", "param"),
    [
        (API, {"before": "x"}, "before"),
        (PAGE, {"before": "x"}, "before"),
        (API, {"before": "1.a", "after": "1.a"}, ""),
        (API, {"outcome": "good"}, "outcome"),
        (USAGE, {"by": "owner"}, "by"),
        (USAGE, {"from": "2026-02-02", "to": "2026-02-01"}, "from"),
        (USAGE, {"limit": "0"}, "limit"),
        (USAGE, {"after": "-1"}, "after"),
    ],
)
def test_invalid_parameter_is_named(
    busy: str, path: str, query: dict[str, str], param: str
) -> None:
    """Values that no request can have get an error instead of an empty list."""
    answer = get(busy, path, **query)
    assert answer.status_code in {400, 422}
    assert param in answer.text


@pytest.mark.parametrize("period", ["hour", "day", "month"])
def test_overview_adds_up(busy: str, period: str) -> None:
    """Every period has all requests, also those from before the restart, in bins up to now."""
    found = overview(busy, period=period)
    bins = MIN_POINTS
    assert len(found["points"]) == bins  # and none before the first request
    assert sum(point["requests"] for point in found["points"]) == 9
    total = found["total"]
    assert (total["requests"], total["errors"], total["unpriced"]) == (9, 5, 0)
    assert 0 < total["compared_usd"] < total["baseline_usd"]
    assert 0 < total["p50_s"] <= total["p95_s"] <= total["p99_s"] < 60
    bounds_s, counts = found["latencies"]["bounds_s"], found["latencies"]["counts"]
    assert [len(row) for row in counts] == bins * [len(bounds_s) - 1]
    assert sum(map(sum, counts)) == 5  # the others were refused
    assert "9 requests; " in found["summary"]["sentence"]
    explained = any("the most expensive model: " in text for text in found["summary"]["details"])
    assert explained is (period == "day")
    assert {row["name"]: row["requests"] for row in found["keys"]}["anna"] == 3
    assert found["baseline_model"] == LARGE


def test_usage_as_csv(busy: str) -> None:
    """The file has one line for each row, and the formula is text."""
    answer = get(busy, USAGE, by="key", format="csv")
    assert answer.headers["content-type"].startswith("text/csv")
    assert "attachment" in answer.headers["content-disposition"]
    found = list(csv.DictReader(io.StringIO(answer.text, newline="")))
    assert [each["key"] for each in found][:2] == [f"'{FORMULA}", "admin"]
    assert found[2]["requests"] == "3"
