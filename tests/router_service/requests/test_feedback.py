"""Background work never delays requests: if the queue is full, items are dropped and counted."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from router_service.apis.answers import ParsedAnswer, WrittenCall
from router_service.core.decision_record import LoggedFeedback
from router_service.requests.call import Call, Ending
from router_service.requests.feedback import BackgroundLog, WeakEvidence
from router_service.requests.parsing import parse_request
from router_service.requests.pool import Pool
from router_service.runtime.engine import make_planner
from router_service.settings import (
    DatabaseSettings,
    DecisionLogSettings,
    Settings,
    UsageSettings,
)
from router_service.store.memory import MemoryStore
from router_service.store.records import EvidenceMark, GuardedStore, RememberedCall
from router_service.telemetry.metrics import Metrics
from router_service.telemetry.usage import UsageHistory
from tests.bodies import BODY
from tests.endpoints import CHAT
from tests.fakes import FakeRouter
from tests.records import make_record

ROUTER = FakeRouter()
SETTINGS = Settings.sandbox("http://127.0.0.1:9/v1", list(ROUTER.probabilities))


def ended(model: str = "switchcraft") -> Call:
    """Return a request for a model, with an answer that calls a tool."""
    pool = Pool.build(SETTINGS, ROUTER.artifact.manifest)
    request = parse_request(CHAT, json.dumps(BODY | {"model": model}).encode())
    planner = make_planner(SETTINGS, ROUTER, pool)
    plan = planner.prepare(request)
    if plan.arms:
        planner.choose(plan, ROUTER.predict(request.conversation))
    call = Call("dec_1", "req_1", 0.0)
    call.begin(plan)
    call.end(200, Ending.COMPLETE)
    call.accepted.answer = ParsedAnswer((WrittenCall("call_1", "get_weather", '{"city": "Oslo"}'),))
    decision = plan.decision
    call.record = make_record(
        id="dec_1",
        arm=decision.arm if decision else None,
        release=plan.track if decision else None,
        policy=decision.policy if decision else None,
        propensity=decision.propensity if decision else None,
        probabilities=decision.probabilities if decision else None,
        expected_cost_usd=decision.cost_usd if decision else None,
        packed_tokens=decision.packed_tokens if decision else None,
        created=time.time(),
        model=plan.models[0].name,
        reason=plan.reason,
        latency_s=0.1,
        calls=1,
    )
    return call


def background_log(metrics: Metrics, settings: DecisionLogSettings) -> BackgroundLog:
    """Return a log that has not started, so that everything stays in its queue."""

    def clock() -> float:
        return 0.0

    calls = MemoryStore(RememberedCall, ttl_s=1, max_records=9, clock=clock)
    marks = MemoryStore(EvidenceMark, ttl_s=1, max_records=9, clock=clock)
    guarded = GuardedStore(calls, lambda _: None), GuardedStore(marks, lambda _: None)
    usage = UsageHistory(UsageSettings(), DatabaseSettings())
    return BackgroundLog(settings, metrics, usage, WeakEvidence(*guarded, keeps_names=False))


def value(metrics: Metrics, name: str, **labels: str) -> float:
    """Return a series' value, or 0 if it does not exist."""
    return metrics.registry.get_sample_value(f"switchcraft_{name}", labels) or 0


@pytest.mark.parametrize("has_log", [True, False])
def test_full_queue_drops_and_counts(tmp_path: Path, has_log: bool) -> None:
    """Only decisions and feedback count as lost lines; the calls count as unchecked."""
    metrics = Metrics()
    path = tmp_path / "log" if has_log else None
    made = background_log(metrics, DecisionLogSettings(path=path, max_queued=2))
    for model in ("switchcraft", "switchcraft", "switchcraft", "switchcraft", "small"):
        made.answered(ended(model))
    made.feedback(LoggedFeedback(created=1, decision_id="dec_1", correct=True))
    lost = value(metrics, "lost_records_total", kind="decision_log", reason="full")
    assert lost == (3 if has_log else 0)
    assert value(metrics, "tool_calls_total", model="medium", fits="unchecked") == 2
    assert value(metrics, "tool_calls_total", model="small", fits="unchecked") == 1


def test_items_queued_before_the_start_are_handled(tmp_path: Path) -> None:
    """All of them are handled before it closes."""
    metrics = Metrics()
    made = background_log(metrics, DecisionLogSettings(path=tmp_path, evidence=True))
    made.answered(ended())
    made.answered(ended("small"))
    made.start()
    asyncio.run(made.aclose())
    assert value(metrics, "tool_calls_total", model="small", fits="yes") == 1
    assert sum(len(file.read_bytes().splitlines()) for file in tmp_path.glob("*.jsonl")) == 1
