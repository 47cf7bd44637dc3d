"""A request's body -> its plan: at once where nothing has to be computed, else in a thread."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from router_service.core.tracing import StageName, Timer
from router_service.lifecycle.trials import TrialPlanner
from router_service.requests.endpoints import Endpoint
from router_service.requests.planning import Asked, Holders, NotRecalledError, Plan

T = TypeVar("T")

AT_ONCE_BYTES = 16 * 1024
"""Larger bodies are read in a thread: reading this much takes 0.2 ms, which is what handing it to
a thread costs, and the event loop waits as long for a thread that reads it."""


class InQueue(Protocol):
    """Runs a function in a decisions' thread, as `Gateway.in_queue` does for one key."""

    def __call__(self, decide: Callable[[], T], /) -> Awaitable[T]:
        """Return what the function returns; raises OverloadedError."""


@dataclass(frozen=True, slots=True)
class Question:
    """Who is to plan which body."""

    planner: TrialPlanner
    endpoint: Endpoint
    body: bytes
    policy: str | None
    """That of the request's header."""
    holders: Holders


async def plan_for(question: Question, in_queue: InQueue) -> Plan:
    """Plan a request; raises InvalidRequestError, OverloadedError, and as `Planner.plan` does.

    What names its model, and what was decided before, needs no thread.
    """
    timer = Timer(time.perf_counter)
    if len(question.body) > AT_ONCE_BYTES:
        return await in_queue(lambda: _read_and_decide(question, timer))
    asked = _read(question, timer)
    plan = _recalled(question, asked)
    if plan is None:
        plan = await in_queue(lambda: _decided(question, asked, timer))
    return _timed(plan, timer)


def _read_and_decide(question: Question, timer: Timer) -> Plan:
    timer.end(StageName.QUEUE)
    asked = _read(question, timer)
    plan = _recalled(question, asked)
    if plan is None:
        plan = question.planner.plan(asked, question.policy, question.holders)
    return _timed(plan, timer)


def _decided(question: Question, asked: Asked, timer: Timer) -> Plan:
    timer.end(StageName.QUEUE)
    return question.planner.plan(asked, question.policy, question.holders)


def _read(question: Question, timer: Timer) -> Asked:
    asked = Asked.read(question.endpoint, question.body)
    timer.end(StageName.PARSE)
    return asked


def _recalled(question: Question, asked: Asked) -> Plan | None:
    try:
        return question.planner.recall(asked, question.policy, question.holders)
    except NotRecalledError:
        return None


def _timed(plan: Plan, timer: Timer) -> Plan:
    decided = plan.decision.stages if plan.decision else ()
    return replace(plan, stages=(*timer.stages, *decided))
