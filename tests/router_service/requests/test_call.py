"""Costs of answers, as far as they are known, and responsibility for failures."""

from __future__ import annotations

import asyncio
import json

import pytest

from router_service.apis.usage import Usage
from router_service.core.decision_record import DecisionRecord
from router_service.core.releases import CanaryTrial, Track
from router_service.policies.costs import Price
from router_service.requests.call import Call, Ending
from router_service.requests.candidates import answer_cost_usd
from router_service.requests.parsing import parse_request
from router_service.requests.pool import Pool
from router_service.requests.recording import Recorder
from router_service.runtime.engine import make_planner
from router_service.settings import DatabaseSettings, Deployment, Model, Settings, UsageSettings
from router_service.store.memory import MemoryStore
from router_service.store.records import GuardedStore
from router_service.telemetry.metrics import Metrics
from router_service.telemetry.recent_requests import RecentRequests
from router_service.telemetry.usage import UsageHistory
from tests.bodies import BODY
from tests.endpoints import CHAT
from tests.fakes import FakeRouter

PRICES = {
    "tokens": Price(input_usd_per_mtok=1, output_usd_per_mtok=2),
    "time": Price(usd_per_hour=3.6),
    "both": Price(input_usd_per_mtok=1, output_usd_per_mtok=2, usd_per_hour=3.6),
}
USAGE = Usage(prompt_tokens=100, completion_tokens=10)


@pytest.mark.parametrize(
    ("name", "usage", "cost_usd"),
    [
        ("tokens", USAGE, 120e-6),
        ("tokens", None, None),
        ("time", USAGE, 0.002),
        ("time", None, 0.002),
        ("both", USAGE, 0.00212),
        ("both", None, None),
        ("unknown", USAGE, None),
    ],
)
def test_cost_is_none_if_a_needed_value_is_missing(
    name: str, usage: Usage | None, cost_usd: float | None
) -> None:
    """Two seconds at 3.60 USD per hour need no tokens; other prices need the token counts."""
    deployment = Deployment(upstream_model=name, base_url="http://h/v1")
    model = Model(name=name, deployments=(deployment,), price=PRICES.get(name))
    assert answer_cost_usd(model, usage, upstream_s=2) == (
        None if cost_usd is None else pytest.approx(cost_usd)
    )


class Trial(CanaryTrial):
    """Trial that records how requests ended."""

    def __init__(self) -> None:
        self.seen: list[tuple[Track, bool]] = []

    def observe(self, track: Track, *, has_failed: bool, cost_usd: float | None) -> None:  # noqa: ARG002
        """Record the outcome."""
        self.seen.append((track, has_failed))


@pytest.mark.parametrize(
    ("status", "ending", "seen"),
    [
        (200, Ending.COMPLETE, [(Track.CANARY, False)]),
        (400, Ending.COMPLETE, [(Track.CANARY, False)]),  # the client's own error
        (429, Ending.COMPLETE, [(Track.CANARY, True)]),
        (500, Ending.COMPLETE, [(Track.CANARY, True)]),
        (502, Ending.FAILED, [(Track.CANARY, True)]),
        (200, Ending.BROKEN, [(Track.CANARY, True)]),
        (499, Ending.CLIENT_LEFT, []),
    ],
)
def test_release_is_not_judged_by_the_clients_errors(
    status: int, ending: Ending, seen: list[tuple[Track, bool]]
) -> None:
    """A trial learns of each routed request whether the upstream or the gateway failed."""
    metrics, trial, router = Metrics(), Trial(), FakeRouter()
    settings = Settings.sandbox("http://127.0.0.1:9/v1", list(router.probabilities))
    pool = Pool.build(settings, router.artifact.manifest)
    planner = make_planner(settings, router, pool)
    request = parse_request(CHAT, json.dumps(BODY).encode())
    plan = planner.prepare(request)
    planner.choose(plan, router.predict(request.conversation))
    plan.track, plan.trial = Track.CANARY, trial

    async def record() -> None:
        store = GuardedStore(
            MemoryStore(DecisionRecord, ttl_s=1, max_records=1, clock=lambda: 0.0), lambda _: None
        )
        call = Call("dec_1", "req_1", 0.0)
        call.begin(plan)
        call.end(status, ending)
        usage = UsageHistory(UsageSettings(), DatabaseSettings())
        recent = RecentRequests(UsageSettings(), DatabaseSettings())
        recorder = Recorder(metrics, store, usage, recent)
        recorder.answered(call)
        recorder.flush()
        await store.aclose()

    asyncio.run(record())
    assert trial.seen == seen

    def counted(name: str) -> float:
        name = f"switchcraft_release_{name}"
        return metrics.registry.get_sample_value(name, {"release": "canary"}) or 0

    assert counted("failures_total") == sum(has_failed for _, has_failed in seen)
    assert counted("requests_total") == counted("seconds_count") == len(seen)
    is_answered = (status, ending) == (200, Ending.COMPLETE)
    assert plan.decision is not None
    probability = plan.decision.probabilities[plan.decision.arm]
    assert counted("expected_correct_total") == pytest.approx(probability if is_answered else 0)
