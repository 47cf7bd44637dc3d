"""The page's traffic over HTTP: the overview, and what a key sees of other keys' requests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from router_service.core.keys import new_key
from router_service.database.usage_sums import LATENCY_BOUNDS_S, UsageSums
from router_service.policies.costs import Price
from router_service.router import Router
from router_service.serving.app import create_app
from router_service.settings import DatabaseSettings, KeySettings, Settings
from router_service.ui.traffic import MAX_LATENCY_ROWS, LatencyMap
from tests.bodies import BODY, CHAT
from tests.fakes import FakeRouter
from tests.serving import Sandbox, served, wait_for

ADMIN, TEAM_A, TEAM_B = new_key(), new_key(), new_key()
KEYS = KeySettings(
    api={"team-a": SecretStr(TEAM_A), "team-b": SecretStr(TEAM_B)}, admin=SecretStr(ADMIN)
)
PRICE = Price(input_usd_per_mtok=1, output_usd_per_mtok=2)
DEAR = Price(input_usd_per_mtok=10, output_usd_per_mtok=20)
API = "/ui/api/traffic"


@contextmanager
def gateway(sandbox: Sandbox, path: Path, serving: FakeRouter | None = None) -> Iterator[str]:
    """Serve a gateway with two client keys and its database in this file; yield its address."""
    settings = Settings.sandbox(sandbox.base_url, list(FakeRouter().probabilities))
    models = [model.model_copy(update={"price": PRICE}) for model in settings.models]
    models[-1] = models[-1].model_copy(update={"price": DEAR})
    router = settings.router.model_copy(update={"baseline_model": models[-1].name})
    database = DatabaseSettings(url=SecretStr(f"sqlite:///{path}"))
    changes = {"keys": KEYS, "database": database, "router": router}
    settings = settings.model_copy(update={**changes, "models": tuple(models)})
    with served(create_app(settings, serving or FakeRouter())) as url:
        yield url


def get(url: str, path: str, caller: str = ADMIN, **query: str) -> dict[str, Any]:
    """Return an answer of the page's API."""
    response = httpx.get(f"{url}{API}/{path}", headers={"x-api-key": caller}, params=query)
    response.raise_for_status()
    answer: dict[str, Any] = response.json()
    return answer


def ask(url: str, key: str, **changes: object) -> str:
    """Send a request, and return the id of its decision."""
    headers = {"authorization": f"Bearer {key}"}
    response = httpx.post(url + CHAT, json={**BODY, **changes}, headers=headers)
    return str(response.headers.get("x-switchcraft-decision-id"))


@pytest.fixture(scope="module")
def shipped() -> Router:
    """Return the shipped router."""
    return Router.load()


@pytest.fixture(scope="module")
def busy(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve a gateway that has answered two requests of team A and one of team B, and restarted."""
    path = tmp_path_factory.mktemp("usage") / "switchcraft.db"
    with gateway(sandbox, path) as url:
        ask(url, TEAM_A)
        ask(url, TEAM_B)
    with gateway(sandbox, path) as url:
        ask(url, TEAM_A, messages=[])
        wait_for(lambda: get(url, "overview")["total"]["requests"] == 3, "all are written")
        yield url


@pytest.mark.parametrize(("period", "bins"), [("hour", 60), ("day", 24), ("month", 30)])
def test_overview_adds_up(busy: str, period: str, bins: int) -> None:
    """Every period has all requests, also those from before the restart, in bins up to now."""
    overview = get(busy, "overview", period=period)
    assert len(overview["points"]) == bins
    assert sum(point["requests"] for point in overview["points"]) == 3
    total = overview["total"]
    assert (total["requests"], total["errors"], total["unpriced"]) == (3, 1, 0)
    assert 0 < total["cost_usd"] == total["compared_usd"] < total["baseline_usd"]
    assert 0 < total["p50_s"] <= total["p95_s"] <= total["p99_s"] < 60
    bounds_s, counts = overview["latencies"]["bounds_s"], overview["latencies"]["counts"]
    assert [len(row) for row in counts] == bins * [len(bounds_s) - 1]
    assert sum(map(sum, counts)) == 2  # one was refused
    assert bounds_s[0] < total["p50_s"] < bounds_s[-1]
    assert "3 requests; " in overview["summary"]["sentence"]
    assert {row["name"]: row["requests"] for row in overview["keys"]} == {"team-a": 2, "team-b": 1}
    assert "none" in [row["name"] for row in overview["models"]]
    assert overview["baseline_model"] == [*FakeRouter().probabilities][-1]


def test_overview_estimates_accuracy_and_counts_feedback(
    sandbox: Sandbox, shipped: Router, tmp_path: Path
) -> None:
    """Routed requests add their probabilities, as soon as the errors of these are measured."""
    path = tmp_path / "switchcraft.db"
    settings = Settings.sandbox(sandbox.base_url, list(shipped.arms))
    database = DatabaseSettings(url=SecretStr(f"sqlite:///{path}"))
    with served(create_app(settings.model_copy(update={"database": database}), shipped)) as url:

        def estimated() -> str | None:
            headers = {"x-switchcraft-policy": "drift=0.3"}
            answer = httpx.post(url + CHAT, json=BODY, headers=headers)
            decision = answer.headers["x-switchcraft-decision-id"]
            series = 'switchcraft_estimated_requests_total{model="'
            return decision if series in httpx.get(f"{url}/metrics").text else None

        wait_for(lambda: estimated() is not None, "the errors of probabilities are measured")
        decision = estimated()
        record = httpx.get(f"{url}/v1/decisions/{decision}").json()
        feedback = {"decision_id": decision, "correct": True}
        assert httpx.post(f"{url}/v1/feedback", json=feedback).status_code == 200
        wait_for(
            lambda: get(url, "overview")["total"]["feedback_correct"] == 1, "feedback is written"
        )
        overview = get(url, "overview")
    total = overview["total"]
    best = record["probabilities"]["claude-sonnet-4.5"]
    assert total["estimated"] >= 1
    assert total["baseline_expected_correct"] / total["estimated"] == pytest.approx(best, abs=1e-5)
    corrected = total["expected_correct"] / total["estimated"]
    assert corrected == pytest.approx(record["probabilities"][record["arm"]], abs=0.03)
    low, high = total["relative_accuracy_interval"]
    assert low < total["relative_accuracy"] < high
    assert "as accurate as claude-sonnet-4.5" in overview["summary"]["sentence"]
    assert "Feedback: 1 of 1 answer correct." in overview["summary"]["details"]


def test_latencies_are_shown_in_few_rows() -> None:
    """Neighbouring bins are merged; the bounds enclose all latencies."""
    points = [UsageSums(), UsageSums(latencies={3: 2, 4: 1}), UsageSums(latencies={80: 5, 81: 1})]
    wide = LatencyMap.of(points)
    assert len(wide.bounds_s) - 1 <= MAX_LATENCY_ROWS
    assert [sum(row) for row in wide.counts] == [0, 3, 6]
    assert wide.bounds_s[0] < LATENCY_BOUNDS_S[3]
    assert wide.bounds_s[-1] >= LATENCY_BOUNDS_S[80]
    narrow = LatencyMap.of([UsageSums(latencies={10: 3})])
    assert narrow.counts == ((3,),)
    assert narrow.bounds_s == pytest.approx(LATENCY_BOUNDS_S[9:11])
    assert LatencyMap.of(points[:1]) == LatencyMap(bounds_s=(), counts=((),))


def test_filters_apply_to_the_figures_and_to_the_other_lists(busy: str) -> None:
    """The list of a filtered name still offers all names."""
    everything = get(busy, "overview")
    routed = next(row["name"] for row in everything["policies"] if row["name"] != "none")
    overview = get(busy, "overview", policy=routed, key="team-b")
    assert overview["total"]["requests"] == 1
    assert [row["name"] for row in overview["policies"]] == [routed]
    assert len(overview["keys"]) == 2
    assert sum(row["requests"] for row in overview["models"]) == 1


def test_client_sees_its_own_traffic_only(busy: str) -> None:
    """A client's key gets its own figures and decisions, whatever it asks for."""
    assert get(busy, "session", TEAM_A)["key"] == "team-a"
    assert get(busy, "session", TEAM_A)["is_admin"] is False
    assert get(busy, "session")["is_admin"] is True
    overview = get(busy, "overview", TEAM_B, key="team-a")
    assert (overview["total"]["requests"], overview["keys"]) == (1, [])
    mine, theirs = ask(busy, TEAM_A), ask(busy, TEAM_B)
    wait_for(lambda: theirs in ids(get(busy, "requests")), "both are listed")
    for caller, filters in ((TEAM_A, {}), (TEAM_A, {"key": "team-b", "search": mine})):
        rows = get(busy, "requests", caller, **filters)["requests"]
        assert rows[0]["id"] == mine
        assert {row["key"] for row in rows} == {"team-a"}
    assert get(busy, "requests", TEAM_A, search=theirs)["requests"] == []
    assert get(busy, "requests/names", TEAM_A)["keys"] == ["team-a"]
    assert get(busy, f"requests/{mine}", TEAM_A)["decision"]["explanation"]
    other = httpx.get(f"{busy}{API}/requests/{theirs}", headers={"x-api-key": TEAM_A})
    assert other.status_code == 404
    assert get(busy, f"requests/{theirs}")["decision"]["key"] == "team-b"


def ids(listed: dict[str, Any]) -> list[str]:
    """Return the ids of the listed requests."""
    return [row["id"] for row in listed["requests"]]
