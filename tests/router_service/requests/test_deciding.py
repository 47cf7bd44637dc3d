"""Which requests are planned at once, and that they are planned as any other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import pytest

from router_service.core.artifact import SHIPPED, Artifact
from router_service.core.errors import InvalidRequestError, OverloadedError
from router_service.core.tracing import StageName
from router_service.lifecycle.engine import make_planner
from router_service.lifecycle.trials import TrialPlanner
from router_service.requests.deciding import AT_ONCE_BYTES, Question, plan_for
from router_service.requests.endpoints import CHAT
from router_service.requests.planning import DecidingRouter, GatewayReason, Plan
from router_service.requests.pool import Pool
from router_service.router import Router
from router_service.settings import Settings
from tests.bodies import BODY
from tests.fakes import FakeRouter

T = TypeVar("T")


class Threads:
    """Runs what is handed to it, and counts how often."""

    def __init__(self) -> None:
        self.runs = 0

    async def __call__(self, decide: Callable[[], T]) -> T:
        """Run it here."""
        self.runs += 1
        return decide()


def question(router: DecidingRouter, **fields: object) -> Question:
    """Return a request for a plan; `fields` are the body's."""
    settings = Settings.sandbox("http://127.0.0.1:9/v1", router.artifact.manifest.arms)
    pool = Pool.build(settings, router.artifact.manifest)
    planner = TrialPlanner(make_planner(settings, router, pool))
    body = json.dumps({**BODY, **fields}).encode()
    return Question(planner, CHAT, body, policy=None, holders=lambda _: None)


def planned(question: Question, threads: Threads) -> Plan:
    """Plan a request."""
    return asyncio.run(plan_for(question, threads))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [({"model": "small"}, GatewayReason.PINNED), ({"tools": []}, GatewayReason.CHAT)],
)
def test_what_the_router_is_not_asked_for_needs_no_thread(
    fields: dict[str, object], reason: GatewayReason
) -> None:
    """A model by name, and a chat without tools; large ones are read in a thread all the same."""
    threads = Threads()
    asked = question(FakeRouter(), **fields)
    plan = planned(asked, threads)
    assert (plan.reason, threads.runs) == (reason, 0)
    assert [stage.name for stage in plan.stages] == [StageName.PARSE]
    large = replace(asked, body=asked.body + b" " * AT_ONCE_BYTES)
    plan = planned(large, threads)
    assert (plan.reason, threads.runs) == (reason, 1)
    assert [stage.name for stage in plan.stages] == [StageName.QUEUE, StageName.PARSE]


def test_the_model_is_asked_in_a_thread_and_once() -> None:
    """The same request again is decided alike without one; as a large body it finds the same."""
    threads = Threads()
    asked = question(Router(Artifact.load(SHIPPED)))
    first, again = planned(asked, threads), planned(asked, threads)
    assert threads.runs == 1
    large = planned(replace(asked, body=asked.body + b" " * AT_ONCE_BYTES), threads)
    assert [stage.name for stage in first.stages] == list(StageName)[1:]
    names = [[stage.name for stage in plan.stages] for plan in (again, large)]
    assert names == [["parse", "select"], ["queue", "parse", "select"]]
    assert first.decision is not None
    for plan in (again, large):
        assert plan.decision is not None
        assert replace(plan.decision, stages=()) == replace(first.decision, stages=())
        assert plan.candidates == first.candidates


def test_refusals_come_from_either_way() -> None:
    """What cannot be read is refused at once; where too much waits, what needs the model is."""
    asked, threads = question(FakeRouter()), Threads()
    with pytest.raises(InvalidRequestError):
        planned(replace(asked, body=b"{"), threads)
    assert threads.runs == 0

    async def full(_decide: Callable[[], T]) -> T:
        raise OverloadedError("decisions_queued", "Too many requests wait for a decision.")

    with pytest.raises(OverloadedError):
        asyncio.run(plan_for(asked, full))
    assert asyncio.run(plan_for(question(FakeRouter(), model="small"), full)).candidates
