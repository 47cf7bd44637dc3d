"""What became of a request -> its metrics, its log line, and its record in the store."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum

from router_service.api.planning import Plan
from router_service.core.selection import Policy
from router_service.core.usage import NOTHING_USED, Usage
from router_service.store.base import DecisionRecord
from router_service.store.guarded import GuardedStore
from router_service.telemetry.logs import log_request
from router_service.telemetry.metrics import NO_MODEL, Metrics


class Ending(StrEnum):
    """How an answer ended."""

    COMPLETE = "complete"
    """Passed on to its end, an upstream's error included."""
    FAILED = "failed"
    """The upstream gave no usable answer; the client got an error of the gateway's."""
    BROKEN = "broken"
    """A stream broke after its first byte was passed on."""
    CLIENT_LEFT = "client_left"
    """The client closed its connection before the end."""


@dataclass(slots=True)
class Outcome:
    """What is known so far of an answer, while it is passed on."""

    status: int
    ending: Ending = Ending.CLIENT_LEFT
    usage: Usage | None = None
    first_byte_s: float | None = None
    upstream_s: float = 0.0
    timed_out: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """One request as it is known by: our id, the client's id, and when it came.

    `started_s` is by the monotonic clock of `time.perf_counter`.
    """

    decision_id: str
    request_id: str
    started_s: float


class Recorder:
    """Accounts for every chat request, once, when it has ended."""

    def __init__(self, metrics: Metrics, store: GuardedStore) -> None:
        """Record to these."""
        self._metrics = metrics
        self._store = store

    def refused(self, call: Call, status: int) -> None:
        """Account for a request that was refused before a model was chosen."""
        self._metrics.requests.labels(NO_MODEL, "none", str(status)).inc()
        log_request(_call_fields(call) | {"status": status})

    def left(self, call: Call, status: int) -> None:
        """Account for a client that left before its request was read."""
        self._metrics.client_disconnects.inc()
        self.refused(call, status)

    def answered(self, call: Call, plan: Plan, outcome: Outcome) -> None:
        """Account for a request that was sent to a model."""
        cost_usd = self.cost_usd(plan, outcome.usage, outcome.upstream_s)
        self._count(plan, outcome)
        self._count_usage(plan, outcome, cost_usd)
        record = _record(call, plan, outcome, cost_usd)
        self._store.save(record)
        log_request(_call_fields(call) | record.model_dump(include=_LOGGED, exclude_none=True))

    def cost_usd(self, plan: Plan, usage: Usage | None, upstream_s: float) -> float | None:
        """Return what an answer cost at its price, or None where that is unknown."""
        price = plan.model.price
        if price is None or (usage is None and price.counts_tokens):
            return None
        return price.cost_of(usage or NOTHING_USED, upstream_s)

    def _count(self, plan: Plan, outcome: Outcome) -> None:
        metrics, model = self._metrics, plan.model.name
        metrics.requests.labels(model, _kind(plan.policy), str(outcome.status)).inc()
        if plan.decision is not None:
            metrics.decisions.labels(plan.decision.arm, plan.decision.reason).inc()
        metrics.upstream_seconds.labels(model).observe(outcome.upstream_s)
        if outcome.first_byte_s is not None:
            metrics.time_to_first_byte.labels(model).observe(outcome.first_byte_s)
        if outcome.ending is Ending.CLIENT_LEFT:
            metrics.client_disconnects.inc()
        elif outcome.ending is Ending.BROKEN:
            metrics.broken_streams.labels(model).inc()
        elif outcome.ending is Ending.FAILED:
            kind = "timeout" if outcome.timed_out else "unreachable"
            metrics.upstream_failures.labels(model, kind).inc()

    def _count_usage(self, plan: Plan, outcome: Outcome, cost_usd: float | None) -> None:
        metrics, model, usage = self._metrics, plan.model.name, outcome.usage
        if usage is not None:
            metrics.tokens.labels(model, "prompt").inc(usage.prompt_tokens)
            metrics.tokens.labels(model, "completion").inc(usage.completion_tokens)
        if cost_usd is not None:
            metrics.cost_usd.labels(model).inc(cost_usd)
        elif outcome.ending is Ending.COMPLETE and outcome.status < 400:
            metrics.unpriced.labels(model, "usage" if usage is None else "price").inc()


_LOGGED = {
    "model", "arm", "reason", "policy", "stream", "status", "ending",
    "prompt_tokens", "completion_tokens", "actual_cost_usd", "first_byte_s",
}  # fmt: skip


def _call_fields(call: Call) -> dict[str, object]:
    duration_ms = round((time.perf_counter() - call.started_s) * 1e3, 1)
    return {"id": call.decision_id, "request_id": call.request_id, "ms": duration_ms}


def _kind(policy: Policy | None) -> str:
    """Return a policy's rule without its number, which is the client's."""
    return "none" if policy is None else str(policy).partition("=")[0]


def _record(call: Call, plan: Plan, outcome: Outcome, cost_usd: float | None) -> DecisionRecord:
    decision, usage = plan.decision, outcome.usage
    return DecisionRecord(
        id=call.decision_id,
        created=time.time(),
        model=plan.model.name,
        arm=decision.arm if decision else None,
        reason=plan.reason,
        policy=str(plan.policy) if plan.policy else None,
        probabilities=decision.probabilities if decision else None,
        cost_usd=decision.cost_usd if decision else None,
        packed_tokens=decision.packed_tokens if decision else None,
        stream=plan.stream,
        status=outcome.status,
        ending=outcome.ending,
        prompt_tokens=usage.prompt_tokens if usage else None,
        completion_tokens=usage.completion_tokens if usage else None,
        actual_cost_usd=cost_usd,
        latency_s=time.perf_counter() - call.started_s,
        first_byte_s=outcome.first_byte_s,
    )
