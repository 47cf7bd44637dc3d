"""The state of a planned request while upstreams answer it, and its record once it has ended."""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import orjson

from router_service.apis.answers import AnswerIdentity, ParsedAnswer
from router_service.apis.usage import NO_USAGE, Usage
from router_service.core.decision_record import CandidateRecord, DecisionRecord
from router_service.core.errors import UpstreamError
from router_service.policies.explanations import (
    arm_label,
    explain_candidate,
    explain_choice,
    explain_record,
)
from router_service.policies.selection import Reason
from router_service.requests.planning import GatewayReason, Plan
from router_service.router import Decision
from router_service.settings import Model
from router_service.store.records import GuardedStore
from router_service.telemetry.history import NO_POLICY, TrafficHistory
from router_service.telemetry.logs import log_request
from router_service.telemetry.metrics import NO_MODEL, Metrics, status_label
from router_service.tracing import UNTRACED, AttributeValue, ResponseInfo, Trace
from router_service.upstream.client import ReserveMemory, unlimited
from router_service.upstream.retries import Attempt
from router_service.upstream.streams import (
    CHARACTERS_PER_TOKEN,
    StartedAnswer,
)
from router_service.verifier.steps import UnverifiedReason

UNFAMILIAR_NOTE = "The request is unlike the training data, so the estimate is uncertain."

CLIENT_LEFT = 499
"""Status in logs and metrics if the client disconnected; it is never sent."""

API_PREFIX = "/v1/"

MAX_PATH = 200
"""Longest part of a client's path that is logged, in characters. Queries are never logged."""

QUIET_PATHS = frozenset(
    "/healthz /readyz /health/liveliness /health/liveness /health/readiness /metrics "
    "/ui/api/traffic/recent /ui/api/traffic/overview".split()
)
"""Paths that are polled every few seconds; logged at level debug."""

MAX_RECENT = 200
"""Maximum number of decisions that the web page shows; each takes about 2 KB."""


class Ending(StrEnum):
    """How an answer ended."""

    COMPLETE = "complete"
    """The answer, which may be an upstream's error, was relayed to its end."""
    FAILED = "failed"
    """No upstream gave a usable answer; the client got the gateway's own error."""
    BROKEN = "broken"
    """A stream broke after its first byte had been relayed."""
    CLIENT_LEFT = "client_left"
    """The client closed its connection before the end."""


@dataclass(slots=True)
class RequestInfo:
    """Request metadata: ids, arrival time, API-key name."""

    decision_id: str
    request_id: str
    """The client's id for the request, or ours."""
    started_s: float
    """Arrival, by the clock of `time.perf_counter`."""
    key: str | None = None
    """Name of the API key, or None if no key is configured."""
    trace: Trace = UNTRACED
    hold_memory: ReserveMemory = unlimited
    """Counts bytes towards the request's slot until it ends; raises OverloadedError."""
    is_logged: bool = False
    """Whether the request's log line has been written; each request has one."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """The first value of each header, by its name in lower case. Starlette's `Headers` decodes and
    compares every header for each look-up."""


@dataclass(slots=True)
class CandidateExchange:
    """One arm's answer to a verified request, while it arrives and afterwards."""

    arm: str
    model: Model
    step: int
    """Number of the step that asks the arm, from 1."""
    opened: StartedAnswer | None = None
    """The upstream's answer from its start until the request ends; its `body` is whole once
    `is_complete`."""
    deployment_id: str | None = None
    """The deployment that answered."""
    is_complete: bool = False
    """Whether the answer arrived completely, so that it can be judged and delivered."""
    error: UpstreamError | None = None
    """Why there is no answer. Neither complete nor failed means cancelled."""
    attempts: list[Attempt] = field(default_factory=list)
    """Deployments that were tried, in order."""
    answer: ParsedAnswer | None = None
    """The parsed answer, if it is complete and not too large."""
    p_correct: float | None = None
    """The verifier's last estimate, if there is one."""
    first_p_correct: float | None = None
    """The verifier's first estimate, before further arms were asked."""
    ungrounded: tuple[str, ...] = ()
    """Invented arguments of risky tools that no other candidate confirms."""
    usage: Usage | None = None
    identity: AnswerIdentity = field(default_factory=AnswerIdentity)
    first_byte_s: float | None = None
    seconds: float = 0.0
    """From the request to the upstream until the end of the answer."""
    trace: Trace = field(default=UNTRACED, repr=False)

    @property
    def was_asked(self) -> bool:
        """Whether an upstream may have got a part of the request, and may bill it."""
        return any(attempt.was_sent for attempt in self.attempts)

    @property
    def cost_usd(self) -> float | None:
        """Cost of the answer; None if it is unknown, or if there was no answer."""
        return answer_cost_usd(self.model, self.usage, self.seconds) if self.seconds else None

    @property
    def failure(self) -> str | None:
        """Why there is no answer; None if there is one."""
        if self.is_complete:
            return None
        return "cancelled" if self.error is None else str(self.error.failure)


@dataclass(slots=True)
class Exchange:
    """The mutable state of a planned request while upstreams answer it."""

    info: RequestInfo
    plan: Plan
    model: Model = field(init=False)
    """The model that answered or was tried last; initially the chosen one."""
    status: int = CLIENT_LEFT
    ending: Ending = Ending.CLIENT_LEFT
    started_s: float = field(default_factory=time.perf_counter)
    """When the first upstream was called."""
    first_byte_s: float | None = None
    upstream_s: float = 0.0
    usage: Usage | None = None
    answer: ParsedAnswer | None = None
    """The parsed answer, if it is complete and not too large."""
    attempts: list[Attempt] = field(default_factory=list)
    """Deployments that were tried for an answer that is not a candidate, in order."""
    identity: AnswerIdentity = field(default_factory=AnswerIdentity)
    """The id and the model that the upstream's answer names."""
    error: UpstreamError | None = None
    """Why there is no complete answer, if an upstream is the reason."""
    candidates: list[CandidateExchange] = field(default_factory=list)
    """The candidate answers of a verified request, in the order in which they were asked."""
    unasked: list[CandidateExchange] = field(default_factory=list)
    """Candidates whose arms did not get the request: no limit counts them, and nobody bills them.
    For example, all circuits were open, or no connection was made in time."""
    accepted: CandidateExchange | None = None
    """The candidate that is delivered; the fields above then describe its answer."""
    verification_steps: int = 0
    """Number of times that arms were asked for candidates."""
    added_s: float = 0.0
    """Time from the first complete candidate until one was accepted."""
    verifier_failed: bool = False
    """Whether the router failed to judge the candidates."""
    was_cut_off: bool = False
    """Whether the gateway's shutdown ended the request."""
    why: str | None = None
    """Why the router chose the arm, in one sentence, if the headers say so."""
    record: DecisionRecord | None = None
    """The decision record, once the exchange has ended."""

    def __post_init__(self) -> None:
        """Start with the chosen model."""
        self.model = self.plan.candidates[0]

    def end(self, status: int, ending: Ending) -> None:
        """Set the status that the client gets, and how the answer ended."""
        self.status, self.ending = status, ending

    @property
    def is_fallback(self) -> bool:
        """Whether a model other than the chosen one answers."""
        return self.plan.verified is None and self.model is not self.plan.candidates[0]

    @property
    def reason(self) -> Reason | GatewayReason:
        """Why the model answers."""
        if self.plan.unverified is UnverifiedReason.TEXT:
            return GatewayReason.TEXT
        if self.plan.unverified is UnverifiedReason.UNGROUNDED:
            return GatewayReason.UNGROUNDED
        if self.plan.verified is not None:
            return GatewayReason.VERIFIED
        return GatewayReason.FALLBACK if self.is_fallback else self.plan.reason

    @property
    def arm(self) -> str | None:
        """The arm whose candidate was accepted, or else the chosen arm."""
        if self.accepted is not None:
            return self.accepted.arm
        return self.plan.decision.arm if self.plan.decision else None

    @property
    def all_attempts(self) -> list[Attempt]:
        """Deployments that were tried: for candidates, and then for another answer."""
        tried = [each.attempts for each in (*self.candidates, *self.unasked)]
        return [attempt for attempts in (*tried, self.attempts) for attempt in attempts]

    @property
    def deployment_id(self) -> str | None:
        """The deployment that answered, or that was tried last."""
        if self.accepted is not None:
            return self.accepted.deployment_id
        attempts = self.all_attempts
        return attempts[-1].deployment_id if attempts else None

    @property
    def has_own_answer(self) -> bool:
        """Whether the fields describe an answer, and not only rejected candidates.

        A request that no upstream got has no answer, takes no upstream's time, and costs nothing.
        """
        if self.accepted is not None:
            return True
        return self.plan.verified is None and any(each.was_sent for each in self.attempts)

    @property
    def was_cancelled(self) -> bool:
        """Whether an upstream had the request and no answer when the gateway stopped waiting."""
        return bool(self.attempts) and self.attempts[-1].is_cancelled

    def total_cost_usd(self, cost_usd: float | None) -> float | None:
        """Return the cost of the answer, `cost_usd`, and of all candidates that it is not one of.

        The total is None if a part of it is unknown.
        """
        if not self.candidates:
            return cost_usd
        others = [c for c in self.candidates if c is not self.accepted]
        parts = [(self.usage, cost_usd), *((c.usage, c.cost_usd) for c in others)]
        if any(usage is not None and cost is None for usage, cost in parts):
            return None
        known = [cost for _, cost in parts if cost is not None]
        return sum(known) if known else None

    def estimate_usage(self, completion_tokens: int) -> Usage:
        """Return an estimate of the usage, for answers that do not report it."""
        size_bytes = self.plan.request.body.size_bytes
        return Usage(
            prompt_tokens=-(-size_bytes // CHARACTERS_PER_TOKEN),
            completion_tokens=completion_tokens,
            is_estimated=True,
        )

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return the response headers that describe the decision."""
        plan = self.plan
        values = {
            "x-switchcraft-decision-id": self.info.decision_id,
            "x-switchcraft-model": self.model.name,
            "x-switchcraft-reason": self.reason,
            "x-switchcraft-attempts": str(len(self.all_attempts)),
        }
        if plan.applied_policy is not None:
            values["x-switchcraft-policy"] = str(plan.applied_policy)
        self.why = self._explain()
        if self.why is not None:
            values["x-switchcraft-why"] = self.why
        if plan.unverified is not None:
            values["x-switchcraft-unverified"] = plan.unverified
        if plan.risk is not None:
            values["x-switchcraft-risk"] = plan.risk
        if plan.decision is not None and plan.decision.familiarity is not None:
            values["x-switchcraft-familiarity"] = f"{plan.decision.familiarity:.4f}"
        if self.accepted is not None:
            values["x-switchcraft-candidates"] = str(len(self.candidates))
            if self.accepted.ungrounded:
                values["x-switchcraft-ungrounded"] = ", ".join(self.accepted.ungrounded)
            if self.accepted.p_correct is not None:
                values["x-switchcraft-p-correct"] = f"{self.accepted.p_correct:.4f}"
        return [
            # Model names may be in any script; JSON escapes what a header cannot carry.
            (name.encode(), value.encode() if value.isascii() else orjson.dumps(str(value)))
            for name, value in values.items()
        ]

    def _explain(self) -> str | None:
        """Return why the model answers; None if the reason says everything."""
        decision = self.plan.decision
        if self.accepted is not None:
            label = arm_label(self.accepted.arm, self.accepted.model.name)
            p_correct = self.accepted.p_correct
            sentence = explain_candidate(
                label,
                self.reason,
                len(self.candidates),
                p_correct,
                self.accepted.ungrounded,
            )
        elif decision is None or self.reason != decision.reason:
            return None
        else:
            sentence = self._explain_choice(decision)
        is_uncertain = self.plan.is_unfamiliar and self.reason != Reason.UNFAMILIAR
        return f"{sentence} {UNFAMILIAR_NOTE}" if is_uncertain else sentence

    def _explain_choice(self, decision: Decision) -> str:
        return explain_choice(
            decision.arm,
            decision.reason,
            decision.policy,
            decision.probabilities,
            decision.cost_usd,
            self.plan.planner.labels,
        ).sentence


def answer_cost_usd(model: Model, usage: Usage | None, upstream_s: float) -> float | None:
    """Return an answer's cost at its model's price; None if the price or the usage is unknown."""
    price = model.price
    if price is None or (usage is None and price.has_token_prices):
        return None
    return price.cost_of(usage or NO_USAGE, upstream_s)


_LOGGED = (
    "model", "deployment", "attempts", "arm", "release", "shadow_arm", "reason", "policy",
    "policy_name",
    "stream", "status", "ending", "prompt_tokens", "completion_tokens", "usage_is_estimated",
    "actual_cost_usd", "first_byte_s", "unverified", "risk", "familiarity",
    "previous_arm",
)  # fmt: skip
"""Fields of the decision record that are in the log line."""


class Recorder:
    """Records every request once, when it has ended."""

    def __init__(
        self,
        metrics: Metrics,
        store: GuardedStore[DecisionRecord],
        recent: RecentRecords,
        history: TrafficHistory,
        on_ended: Callable[[Exchange], None] = lambda _: None,
    ) -> None:
        """Store the parameters; `on_ended` gets each recorded exchange, and must not block."""
        self._recent = recent
        self._history = history
        self._metrics = metrics
        self._store = store
        self._on_ended = on_ended

    def answered(self, exchange: Exchange) -> None:
        """Record a request that was sent to a model."""
        info, plan, usage = exchange.info, exchange.plan, exchange.usage
        policy = plan.applied_policy
        decision, shadow = plan.decision, None if exchange.accepted else plan.shadow_arm
        cost_usd: float | None = None
        if exchange.has_own_answer:
            cost_usd = answer_cost_usd(exchange.model, usage, exchange.upstream_s)
        self._count(exchange, cost_usd)
        candidates: tuple[CandidateRecord, ...] | None = None
        if exchange.candidates:
            self._count_candidates(exchange)
            cost_usd = exchange.total_cost_usd(cost_usd)
            candidates = tuple(candidate_record(exchange, c) for c in exchange.candidates)
        baseline_usd = None
        if decision is not None:
            baseline_usd = self._count_routed(exchange, decision, cost_usd)
        exchange.record = record = DecisionRecord(
            id=info.decision_id,
            created=time.time(),
            key=info.key,
            model=exchange.model.name,
            deployment=exchange.deployment_id,
            attempts=len(exchange.all_attempts),
            arm=exchange.arm,
            release=plan.track if decision else None,
            # The shadow decides in the background; its choice is recorded if it has decided by now.
            shadow_arm=shadow.result() if shadow is not None and shadow.done() else None,
            reason=exchange.reason,
            policy=str(policy.rule) if policy else None,
            policy_name=policy.name if policy else None,
            propensity=decision.propensity if decision and not candidates else None,
            probabilities=decision.probabilities if decision else None,
            expected_cost_usd=decision.cost_usd if decision else None,
            packed_tokens=decision.packed_tokens if decision else None,
            stream=plan.request.chat.stream,
            status=exchange.status,
            ending=exchange.ending,
            prompt_tokens=usage.prompt_tokens if usage else None,
            completion_tokens=usage.completion_tokens if usage else None,
            calls=len(exchange.answer.calls) if exchange.answer else None,
            usage_is_estimated=usage.is_estimated if usage else None,
            actual_cost_usd=cost_usd,
            latency_s=time.perf_counter() - info.started_s,
            first_byte_s=exchange.first_byte_s,
            unverified=plan.unverified,
            risk=plan.risk,
            familiarity=decision.familiarity if decision else None,
            previous_arm=plan.conversation.state.arm if plan.conversation else None,
            candidates=candidates,
        )
        self._store.save(record)
        self._recent.add(record)
        self._history.add(
            info.key,
            record.model,
            record.policy_label or NO_POLICY,
            policy_kind=policy.kind if policy else NO_POLICY,
            is_error=is_error(record.status, exchange.ending),
            is_unfamiliar=plan.is_unfamiliar,
            latency_s=record.latency_s,
            cost_usd=cost_usd,
            baseline_usd=baseline_usd,
            prompt_tokens=record.prompt_tokens,
            completion_tokens=record.completion_tokens,
        )
        self._on_ended(exchange)
        if info.trace.trace_id is not None:
            is_incomplete = exchange.ending in {Ending.BROKEN, Ending.CLIENT_LEFT}
            info.trace.record_stages(plan.stages)
            for candidate in exchange.candidates:
                candidate.trace.set_attributes(
                    {
                        "accepted": candidate is exchange.accepted,
                        "p_correct": candidate.p_correct,
                        "cost_usd": candidate.cost_usd,
                        "failure": candidate.failure,
                    }
                )
            info.trace.record_response(
                ResponseInfo(
                    response_id=exchange.identity.id,
                    response_model=exchange.identity.model,
                    prompt_tokens=record.prompt_tokens,
                    completion_tokens=record.completion_tokens,
                    failure=str(exchange.ending) if is_incomplete else None,
                )
            )
        fields = {name: getattr(record, name) for name in _LOGGED}
        if candidates is not None:
            fields["candidates"] = len(candidates)
            fields["p_correct"] = exchange.accepted.p_correct if exchange.accepted else None
        if exchange.error is not None:
            fields["cause"] = exchange.error.cause
        fields["why"] = exchange.why
        if record.reason == GatewayReason.FALLBACK or record.candidates:
            fields["why"] = explain_record(record, plan.planner.labels).explanation
        _log(info, {name: value for name, value in fields.items() if value is not None})

    def passed(
        self,
        info: RequestInfo,
        model: str,
        status: int,
        ending: Ending,
        error: UpstreamError | None = None,
    ) -> None:
        """Record a request that was passed to an upstream without parsing it."""
        self._metrics.child(self._metrics.requests, model, "none", status_label(status)).inc()
        if ending is Ending.CLIENT_LEFT:
            self._metrics.client_disconnects.inc()
        elif ending is Ending.BROKEN:
            self._metrics.child(self._metrics.broken_streams, model).inc()
        self._history.add(info.key, model, NO_POLICY, is_error=is_error(status, ending))
        fields: dict[str, AttributeValue] = {"model": model, "reason": "passed"}
        fields |= {"status": status, "ending": ending}
        if error is not None:
            fields["cause"] = error.cause
        _log(info, fields)

    def refused(self, info: RequestInfo, status: int) -> None:
        """Record a request that was refused before a model was chosen."""
        self._metrics.child(self._metrics.requests, NO_MODEL, "none", status_label(status)).inc()
        self._history.add(info.key, NO_MODEL, NO_POLICY, is_error=is_error(status, Ending.COMPLETE))
        _log(info, {"status": status})

    def shed(self, reason: str) -> None:
        """Count a request that is refused because the gateway is overloaded."""
        self._metrics.shed_requests.labels(reason).inc()

    def left(self, info: RequestInfo, status: int) -> None:
        """Record a request whose client disconnected before the request was planned."""
        self._metrics.client_disconnects.inc()
        self.refused(info, status)

    def ended(self, info: RequestInfo, method: str, path: str, status: int) -> None:
        """Log a request that no other method has recorded, e.g. of the web page, with its path."""
        if not info.is_logged:
            if path.startswith(API_PREFIX) and status in {429, 503}:  # refused without a slot
                self._history.add(info.key, NO_MODEL, NO_POLICY, is_error=True)
            is_quiet = path in QUIET_PATHS and status < 400
            fields: dict[str, AttributeValue] = {"method": method, "path": path[:MAX_PATH]}
            _log(info, {**fields, "status": status}, is_quiet=is_quiet)

    def _count(self, exchange: Exchange, cost_usd: float | None) -> None:
        """Update the metrics of every answer: status, times, attempts, tokens, cost."""
        metrics, plan, usage = self._metrics, exchange.plan, exchange.usage
        model, child = exchange.model.name, metrics.child
        applied = plan.applied_policy
        policy = NO_POLICY if applied is None else applied.kind
        child(metrics.requests, model, policy, status_label(exchange.status)).inc()
        for stage in plan.stages:
            child(metrics.stage_seconds, stage.name).observe(stage.seconds)
        if plan.router_failed or exchange.verifier_failed:
            child(metrics.router_failures, plan.track).inc()
        if exchange.is_fallback:
            child(metrics.fallbacks, plan.candidates[0].name, model).inc()
        if plan.unverified is not None:
            child(metrics.unverified_requests, plan.unverified).inc()
        if plan.request.chat.stream and exchange.first_byte_s is not None:
            child(metrics.time_to_first_token, model).observe(exchange.first_byte_s)
        if exchange.ending is Ending.CLIENT_LEFT:
            metrics.client_disconnects.inc()
        elif exchange.ending is Ending.BROKEN:
            child(metrics.broken_streams, model).inc()
        for attempt in exchange.all_attempts:
            kind = attempt.failure or ("cancelled" if attempt.is_cancelled else "answered")
            child(metrics.attempts, attempt.model, attempt.deployment_id, kind).inc()
        if exchange.has_own_answer:
            self._count_answer(model, exchange.upstream_s, usage, cost_usd)
        if cost_usd is None and exchange.ending is Ending.COMPLETE and exchange.status < 400:
            child(metrics.unpriced, model, "usage" if usage is None else "price").inc()

    def _count_answer(
        self, model: str, seconds: float, usage: Usage | None, cost_usd: float | None
    ) -> None:
        """Update the metrics of one upstream's answer: its duration, tokens and cost."""
        metrics, child = self._metrics, self._metrics.child
        child(metrics.upstream_seconds, model).observe(seconds)
        source = "gateway" if usage and usage.is_estimated else "upstream"
        if usage is not None:
            child(metrics.tokens, model, "prompt", source).inc(usage.prompt_tokens)
            child(metrics.tokens, model, "completion", source).inc(usage.completion_tokens)
            for kind, tokens in (
                ("cached", usage.cached_tokens),
                ("reasoning", usage.reasoning_tokens),
            ):
                series = child(metrics.tokens, model, kind, source)
                if tokens:
                    series.inc(tokens)
        if cost_usd is not None:
            child(metrics.cost_usd, model, source).inc(cost_usd)

    def _count_candidates(self, exchange: Exchange) -> None:
        """Update the metrics of a verified request's candidates."""
        metrics, child = self._metrics, self._metrics.child
        for candidate in exchange.candidates:
            outcome = "rejected" if candidate.is_complete else "failed"
            if candidate is exchange.accepted:
                outcome = "accepted"
            else:  # the accepted candidate is counted as the request's answer
                cost_usd = candidate.cost_usd
                self._count_answer(
                    candidate.model.name, candidate.seconds, candidate.usage, cost_usd
                )
                child(metrics.rejected_cost_usd, candidate.arm).inc(cost_usd or 0)
            child(metrics.candidates, candidate.arm, outcome).inc()
        if exchange.accepted is not None:
            metrics.verification_steps.observe(exchange.verification_steps)
            metrics.verification_added_seconds.observe(exchange.added_s)

    def _count_routed(
        self, exchange: Exchange, decision: Decision, cost_usd: float | None
    ) -> float | None:
        """Update the metrics of routed requests: the decision, savings, the release's results.

        Return what the same usage would have cost with the baseline model, if that is known.
        """
        metrics, plan = self._metrics, exchange.plan
        baseline_usd: float | None = None
        child = metrics.child
        arm = exchange.arm or decision.arm
        reason = decision.reason if exchange.accepted is None else exchange.reason
        child(metrics.decisions, arm, reason).inc()
        child(metrics.chosen_probability, arm).observe(decision.probabilities[arm])
        metrics.expected_regret.observe(decision.expected_regret)
        metrics.packed_tokens.observe(decision.packed_tokens)
        metrics.request_bytes.observe(plan.request.body.size_bytes)
        if decision.familiarity is not None:
            metrics.familiarity.observe(decision.familiarity)
        if plan.is_unfamiliar:
            child(metrics.unfamiliar_requests, arm).inc()
        if plan.baseline is not None and cost_usd is not None:
            baseline_usd = answer_cost_usd(plan.baseline, exchange.usage, exchange.upstream_s)
            if baseline_usd is not None:
                child(metrics.routed_cost_usd, exchange.model.name).inc(cost_usd)
                child(metrics.baseline_cost_usd, exchange.model.name).inc(baseline_usd)
        if exchange.ending is not Ending.CLIENT_LEFT and not exchange.was_cut_off:
            is_error = exchange.status >= 500 or exchange.status == 429
            is_incomplete = exchange.ending in {Ending.FAILED, Ending.BROKEN}
            # Clients' mistakes do not count, because otherwise a client could cause the rollback of
            # a canary by setting impossible deadlines.
            may_be_clients = exchange.error is not None and exchange.error.may_be_client_fault
            is_upstreams = (is_error or is_incomplete) and not may_be_clients
            has_failed = plan.router_failed or exchange.verifier_failed or is_upstreams
            child(metrics.release_requests, plan.track).inc()
            child(metrics.release_failures, plan.track).inc(has_failed)
            child(metrics.release_cost_usd, plan.track).inc(cost_usd or 0)
            if plan.trial is not None:
                plan.trial.observe(plan.track, has_failed=has_failed, cost_usd=cost_usd)
        return baseline_usd


def is_error(status: int, ending: Ending) -> bool:
    """Return whether a request failed; a client that left is no error."""
    return (status >= 400 and status != CLIENT_LEFT) or ending in {Ending.FAILED, Ending.BROKEN}


def candidate_record(exchange: Exchange, candidate: CandidateExchange) -> CandidateRecord:
    """Return what the decision record says about a candidate."""
    usage, answer = candidate.usage, candidate.answer
    return CandidateRecord(
        arm=candidate.arm,
        model=candidate.model.name,
        step=candidate.step,
        is_accepted=candidate is exchange.accepted,
        p_correct=candidate.p_correct,
        ungrounded=candidate.ungrounded,
        prompt_tokens=usage.prompt_tokens if usage else None,
        completion_tokens=usage.completion_tokens if usage else None,
        cost_usd=candidate.cost_usd,
        seconds=candidate.seconds,
        failure=candidate.failure,
        calls=len(answer.calls) if answer else None,
    )


class RecentRecords:
    """The last decisions of this process, for the web page; used only on the event loop."""

    def __init__(self, max_records: int = MAX_RECENT) -> None:
        """Start empty."""
        self._records: deque[DecisionRecord] = deque(maxlen=max_records)
        self._process = secrets.token_hex(4)
        self._added = 0

    @property
    def version(self) -> str:
        """A string that changes with each decision, and differs between processes."""
        return f"{self._process}-{self._added}"

    def add(self, record: DecisionRecord) -> None:
        """Add a decision, and drop the oldest one if there are too many."""
        self._records.append(record)
        self._added += 1

    def newest_first(self) -> tuple[DecisionRecord, ...]:
        """Return the kept decisions, the newest one first."""
        return tuple(reversed(self._records))

    def get(self, decision_id: str) -> DecisionRecord | None:
        """Return one decision, or None if it is no longer kept."""
        return next((record for record in self._records if record.id == decision_id), None)


def _log(
    info: RequestInfo, fields: Mapping[str, AttributeValue], *, is_quiet: bool = False
) -> None:
    """Write the request's log line, and add the same fields to its trace."""
    info.is_logged = True
    line: dict[str, object] = {
        "id": info.decision_id,
        "request_id": info.request_id,
        "ms": round((time.perf_counter() - info.started_s) * 1e3, 1),
    }
    if info.key is not None:
        line["key"] = info.key
    if info.trace.trace_id is not None:
        line["trace_id"] = info.trace.trace_id
        ids = {"decision_id": info.decision_id, "request_id": info.request_id}
        info.trace.set_attributes({**ids, **fields})
    log_request({**line, **fields}, is_quiet=is_quiet)
