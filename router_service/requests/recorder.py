"""What became of a request -> its metrics, its log line, and its record in the store."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from router_service.core.answers import NO_USAGE, ParsedAnswer, Usage
from router_service.core.decision_log import DecisionRecord
from router_service.core.selection import Policy
from router_service.requests.planning import GatewayReason, Plan
from router_service.router import Decision
from router_service.settings import Model
from router_service.store.guarded import GuardedStore
from router_service.telemetry.logs import log_request
from router_service.telemetry.metrics import NO_MODEL, Metrics, status_label
from router_service.tracing import UNTRACED, AttributeValue, ResponseInfo, Trace
from router_service.upstream.answers import AnswerIdentity
from router_service.upstream.retries import Attempt


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
    model: Model
    """Who answered; until then the chosen one."""
    ending: Ending = Ending.CLIENT_LEFT
    usage: Usage | None = None
    first_byte_s: float | None = None
    upstream_s: float = 0.0
    said: ParsedAnswer | None = None
    """What a complete answer says, where it was read."""
    attempts: list[Attempt] = field(default_factory=list)
    """Each try of a deployment that has ended, in order."""
    identity: AnswerIdentity = field(default_factory=AnswerIdentity)
    """What the upstream's answer says of itself."""
    may_be_clients: bool = False
    """Whether a failure may be the client's own, and so tells nothing about a release."""

    def reason(self, plan: Plan) -> str:
        """Return why this model answers."""
        return plan.reason if self.model is plan.model else GatewayReason.FALLBACK


@dataclass(slots=True)
class Call:
    """One request as it is known by: our id, the client's id, when it came, and by whose key.

    `started_s` is by the monotonic clock of `time.perf_counter`, `key` the key's name.
    """

    decision_id: str
    request_id: str
    started_s: float
    key: str | None = None
    trace: Trace = UNTRACED
    is_logged: bool = False
    """Whether its line is written: each request has one."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A request that was sent to a model, when all is over."""

    record: DecisionRecord
    plan: Plan
    outcome: Outcome


class Recorder:
    """Accounts for every request, once, when it has ended."""

    def __init__(
        self,
        metrics: Metrics,
        store: GuardedStore[DecisionRecord],
        on_ended: Callable[[Ended], None] = lambda _: None,
    ) -> None:
        """Record to these; `on_ended` must return at once."""
        self._metrics = metrics
        self._store = store
        self._on_ended = on_ended

    def refused(self, call: Call, status: int) -> None:
        """Account for a request that was refused before a model was chosen."""
        self._metrics.child(self._metrics.requests, NO_MODEL, "none", status_label(status)).inc()
        _log(call, {"status": status})

    def shed(self, reason: str) -> None:
        """Count a request that is refused because the gateway is overloaded."""
        self._metrics.shed_requests.labels(reason).inc()

    def left(self, call: Call, status: int) -> None:
        """Account for a client that left before its request was read."""
        self._metrics.client_disconnects.inc()
        self.refused(call, status)

    def answered(self, call: Call, plan: Plan, outcome: Outcome) -> None:
        """Account for a request that was sent to a model."""
        cost_usd = self.cost_usd(outcome.model, outcome.usage, outcome.upstream_s)
        self._count(plan, outcome)
        self._count_usage(outcome, cost_usd)
        if plan.decision is not None:
            self._count_decision(plan, plan.decision)
            self._count_savings(plan, outcome, cost_usd)
        if plan.decision is not None and outcome.ending is not Ending.CLIENT_LEFT:
            self._count_release(plan, outcome, cost_usd)
        record = _record(call, plan, outcome, cost_usd)
        self._store.save(record)
        self._on_ended(Ended(record, plan, outcome))
        call.trace.record_stages(plan.stages)
        call.trace.record_response(_told(outcome))
        known = ((name, getattr(record, name)) for name in _LOGGED)
        _log(call, {name: value for name, value in known if value is not None})

    def passed(self, call: Call, model: str, status: int, ending: Ending) -> None:
        """Account for a request that was passed to an upstream unread."""
        self._metrics.child(self._metrics.requests, model, "none", status_label(status)).inc()
        if ending is Ending.CLIENT_LEFT:
            self._metrics.client_disconnects.inc()
        elif ending is Ending.BROKEN:
            self._metrics.child(self._metrics.broken_streams, model).inc()
        told: dict[str, AttributeValue] = {
            "model": model,
            "reason": "passed",
            "status": status,
            "ending": ending,
        }
        _log(call, told)

    def ended(self, call: Call, method: str, path: str, status: int) -> None:
        """Account for a request that nobody else has: its path is all that it is known by."""
        if not call.is_logged:
            is_quiet = path in QUIET_PATHS and status < 400
            told: dict[str, AttributeValue] = {
                "method": method,
                "path": path[:MAX_PATH],
                "status": status,
            }
            _log(call, told, is_quiet=is_quiet)

    def cost_usd(self, model: Model, usage: Usage | None, upstream_s: float) -> float | None:
        """Return what an answer cost at its price, or None where that is unknown."""
        price = model.price
        if price is None or (usage is None and price.has_token_prices):
            return None
        return price.cost_of(usage or NO_USAGE, upstream_s)

    def _count(self, plan: Plan, outcome: Outcome) -> None:
        metrics, model = self._metrics, outcome.model.name
        policy, status = _kind(plan.policy), status_label(outcome.status)
        metrics.child(metrics.requests, model, policy, status).inc()
        for stage in plan.stages:
            metrics.child(metrics.stage_seconds, stage.name).observe(stage.seconds)
        if plan.router_failed:
            metrics.child(metrics.router_failures, plan.track).inc()
        if outcome.model is not plan.model:
            metrics.child(metrics.fallbacks, plan.model.name, model).inc()
        metrics.child(metrics.upstream_seconds, model).observe(outcome.upstream_s)
        if plan.request.chat.stream and outcome.first_byte_s is not None:
            metrics.child(metrics.time_to_first_token, model).observe(outcome.first_byte_s)
        if outcome.ending is Ending.CLIENT_LEFT:
            metrics.client_disconnects.inc()
        elif outcome.ending is Ending.BROKEN:
            metrics.child(metrics.broken_streams, model).inc()
        for attempt in outcome.attempts:
            kind = attempt.failure or "answered"
            metrics.child(metrics.attempts, attempt.model, attempt.deployment_id, kind).inc()

    def _count_decision(self, plan: Plan, decision: Decision) -> None:
        metrics = self._metrics
        metrics.child(metrics.decisions, decision.arm, decision.reason).inc()
        metrics.child(metrics.chosen_probability, decision.arm).observe(decision.probability)
        metrics.expected_regret.observe(decision.expected_regret)
        metrics.packed_tokens.observe(decision.packed_tokens)
        metrics.request_bytes.observe(plan.request.body.size_bytes)

    def _count_savings(self, plan: Plan, outcome: Outcome, cost_usd: float | None) -> None:
        """Count a cost beside the baseline's for the same usage, where both are known."""
        if plan.baseline is None or cost_usd is None:
            return
        baseline_usd = self.cost_usd(plan.baseline, outcome.usage, outcome.upstream_s)
        if baseline_usd is not None:
            model = outcome.model.name
            self._metrics.child(self._metrics.routed_cost_usd, model).inc(cost_usd)
            self._metrics.child(self._metrics.baseline_cost_usd, model).inc(baseline_usd)

    def _count_usage(self, outcome: Outcome, cost_usd: float | None) -> None:
        metrics, model, usage = self._metrics, outcome.model.name, outcome.usage
        source = "gateway" if usage and usage.is_estimated else "upstream"
        if usage is not None:
            metrics.child(metrics.tokens, model, "prompt", source).inc(usage.prompt_tokens)
            metrics.child(metrics.tokens, model, "completion", source).inc(usage.completion_tokens)
            metrics.child(metrics.tokens, model, "cached", source).inc(usage.cached_tokens)
            metrics.child(metrics.tokens, model, "reasoning", source).inc(usage.reasoning_tokens)
        if cost_usd is not None:
            metrics.child(metrics.cost_usd, model, source).inc(cost_usd)
        elif outcome.ending is Ending.COMPLETE and outcome.status < 400:
            metrics.child(metrics.unpriced, model, "usage" if usage is None else "price").inc()

    def _count_release(self, plan: Plan, outcome: Outcome, cost_usd: float | None) -> None:
        metrics, track = self._metrics, plan.track
        has_failed = plan.router_failed or _has_failed(outcome)
        metrics.child(metrics.release_requests, track).inc()
        metrics.child(metrics.release_failures, track).inc(has_failed)
        metrics.child(metrics.release_cost_usd, track).inc(cost_usd or 0)
        if plan.trial is not None:
            plan.trial.observe(track, has_failed=has_failed, cost_usd=cost_usd)


_LOGGED = (
    "model", "deployment", "attempts", "arm", "release", "shadow_arm", "reason", "policy",
    "stream", "status", "ending", "prompt_tokens", "completion_tokens", "usage_is_estimated",
    "actual_cost_usd", "first_byte_s",
)  # fmt: skip


MAX_PATH = 200
"""Longest path of a client's that is logged, in characters; a query never is."""

QUIET_PATHS = frozenset(
    "/healthz /readyz /health/liveliness /health/liveness /health/readiness /metrics "
    "/ui/api/recent".split()
)
"""What is asked every few seconds; logged at level debug."""


def _log(call: Call, fields: Mapping[str, AttributeValue], *, is_quiet: bool = False) -> None:
    call.is_logged = True
    call.trace.set_attributes(
        {"decision_id": call.decision_id, "request_id": call.request_id, **fields}
    )
    log_request({**_call_fields(call), **fields}, is_quiet=is_quiet)


def _told(outcome: Outcome) -> ResponseInfo:
    usage, ending = outcome.usage, outcome.ending
    return ResponseInfo(
        response_id=outcome.identity.id,
        response_model=outcome.identity.model,
        prompt_tokens=usage.prompt_tokens if usage else None,
        completion_tokens=usage.completion_tokens if usage else None,
        failure=str(ending) if ending in {Ending.BROKEN, Ending.CLIENT_LEFT} else None,
    )


def _call_fields(call: Call) -> dict[str, object]:
    duration_ms = round((time.perf_counter() - call.started_s) * 1e3, 1)
    fields = {"id": call.decision_id, "request_id": call.request_id, "ms": duration_ms}
    optional = {"key": call.key, "trace_id": call.trace.trace_id}
    return fields | {name: value for name, value in optional.items() if value is not None}


def _kind(policy: Policy | None) -> str:
    """Return a policy's rule without its number, which is the client's."""
    return "none" if policy is None else str(policy).partition("=")[0]


def _has_failed(outcome: Outcome) -> bool:
    """Whether the upstream or the gateway failed, and not the client.

    If client mistakes counted, a client could roll back a canary by impossible deadlines.
    """
    if outcome.may_be_clients:
        return False
    is_refused = outcome.status >= 500 or outcome.status == 429
    return is_refused or outcome.ending in {Ending.FAILED, Ending.BROKEN}


def _shadow_arm(plan: Plan) -> str | None:
    """Return what the shadow chose, where it is done: nothing waits for it."""
    shadow = plan.shadow_arm
    return shadow.result() if shadow is not None and shadow.done() else None


def _record(call: Call, plan: Plan, outcome: Outcome, cost_usd: float | None) -> DecisionRecord:
    decision, usage = plan.decision, outcome.usage
    return DecisionRecord(
        id=call.decision_id,
        created=time.time(),
        key=call.key,
        model=outcome.model.name,
        deployment=outcome.attempts[-1].deployment_id if outcome.attempts else None,
        attempts=len(outcome.attempts),
        arm=decision.arm if decision else None,
        release=plan.track if decision else None,
        shadow_arm=_shadow_arm(plan),
        reason=outcome.reason(plan),
        policy=str(plan.policy) if plan.policy else None,
        propensity=decision.propensity if decision else None,
        probabilities=decision.probabilities if decision else None,
        expected_cost_usd=decision.cost_usd if decision else None,
        packed_tokens=decision.packed_tokens if decision else None,
        stream=plan.request.chat.stream,
        status=outcome.status,
        ending=outcome.ending,
        prompt_tokens=usage.prompt_tokens if usage else None,
        completion_tokens=usage.completion_tokens if usage else None,
        calls=len(outcome.said.calls) if outcome.said else None,
        usage_is_estimated=usage.is_estimated if usage else None,
        actual_cost_usd=cost_usd,
        latency_s=time.perf_counter() - call.started_s,
        first_byte_s=outcome.first_byte_s,
    )
