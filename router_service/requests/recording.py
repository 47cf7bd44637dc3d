"""Recording of requests that have ended: one record each, which the sinks take in batches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from router_service.core.decision_record import DecisionRecord
from router_service.core.errors import UpstreamError
from router_service.core.reasons import Reason
from router_service.core.record import (
    CLIENT_LEFT,
    AnswerResult,
    AttemptResult,
    Ending,
    Expectation,
    Record,
    RecordKind,
    RoutedResult,
)
from router_service.policies.explanations import explanation_of
from router_service.requests.call import Call
from router_service.requests.candidates import Candidate, answer_cost_usd
from router_service.router import Decision
from router_service.store.records import Records
from router_service.telemetry.logs import log_fields, log_requests
from router_service.telemetry.metrics import Metrics
from router_service.telemetry.recent_requests import RecentRequests
from router_service.telemetry.request_metrics import count_requests
from router_service.telemetry.usage import UsageHistory

API_PREFIX = "/v1/"

BATCH_S = 0.25
"""Longest time until the sinks take a record."""

BATCH_RECORDS = 64
"""Number of records that wait at most for the end of that time, and that the sinks take at once.
They take about 1.5 ms for so many, which other requests wait for."""


class Recorder:
    """Records every request once, when it has ended.

    What a next request may read is written at once: the decision, the conversation's state, and the
    outcome for budgets and canaries. Metrics, usage, the list and the log take records in batches.
    """

    def __init__(
        self,
        metrics: Metrics,
        store: Records[DecisionRecord],
        usage: UsageHistory,
        recent: RecentRequests,
        on_ended: Callable[[Call], None] = lambda _: None,
    ) -> None:
        """Store the parameters; `on_ended` gets each planned request, and must not block."""
        self._metrics = metrics
        self._store = store
        self._usage = usage
        self._recent = recent
        self._on_ended = on_ended
        self._waiting: list[Record] = []
        self._timer: asyncio.Handle | None = None
        """Takes the next batch; None if no record waits."""

    def answered(self, call: Call) -> None:
        """Record a request that was planned."""
        plan = call.plan
        call.record = record = _record_of(call)
        self._store.save(record)
        if plan.trial is not None and record.routed is not None:
            has_failed = record.routed.release_failed
            if has_failed is not None:
                cost_usd = record.actual_cost_usd
                plan.trial.observe(plan.track, has_failed=has_failed, cost_usd=cost_usd)
        for candidate in call.candidates:
            candidate.opened = None  # the log may keep the call for a while, without bodies
            error: BaseException | None = candidate.error
            while error is not None:
                # A traceback refers to frames with what was read of the answer, and these to the
                # error. Only a full garbage collection would free them.
                error.__traceback__ = None
                error = error.__cause__ or error.__context__
        self._on_ended(call)
        if call.trace.trace_id is not None:
            _trace(call, record)
        self._add(call, record)

    def ended(  # noqa: PLR0913 - each ending has its own facts
        self,
        call: Call,
        status: int,
        kind: RecordKind = RecordKind.REFUSED,
        ending: Ending = Ending.COMPLETE,
        *,
        model: str | None = None,
        error: UpstreamError | None = None,
        method: str | None = None,
    ) -> None:
        """Record a request that was not planned; does nothing if the request is recorded already.

        `model` is only of requests that were passed to an upstream without being parsed, and
        `method` only of those that the gateway answered by itself.
        """
        if call.is_logged:
            return
        if kind is RecordKind.OWN and status in {429, 503} and call.path.startswith(API_PREFIX):
            kind = RecordKind.SHED
        self._add(
            call,
            Record(
                kind=kind,
                id=call.decision_id,
                request_id=call.request_id,
                path=call.path,
                status=status,
                ending=Ending.CLIENT_LEFT if status == CLIENT_LEFT else ending,
                created=time.time(),
                latency_s=time.perf_counter() - call.started_s,
                key=call.key.name,
                team=call.team,
                model=model,
                method=method,
                error=call.refusal if error is None else error.failure,
                cause=call.refusal if error is None else error.cause,
                trace_id=call.trace.trace_id,
                reason=None if model is None else Reason.PASSED,
            ),
        )

    def _add(self, call: Call, record: Record) -> None:
        """Let the sinks take a record with the next batch."""
        call.is_logged = True
        if record.trace_id is not None:
            refusal = None if record.kind is RecordKind.PLANNED else record.error
            call.trace.record_decision(call.stages, refusal)
            ids = {"decision_id": record.id, "request_id": record.request_id}
            call.trace.set_attributes({**ids, **log_fields(record)})
        waiting = self._waiting
        waiting.append(record)
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(BATCH_S, self._take_batch)
        elif len(waiting) == BATCH_RECORDS:
            self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_soon(self._take_batch)

    def _take_batch(self) -> None:
        """Give the sinks the oldest records, and the others after other work of the event loop."""
        batch, self._waiting = self._waiting[:BATCH_RECORDS], self._waiting[BATCH_RECORDS:]
        self._timer = None
        if self._waiting:
            self._timer = asyncio.get_running_loop().call_soon(self._take_batch)
        self._give(batch)

    def flush(self) -> None:
        """Give the sinks all records that wait, because somebody reads what the sinks have."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch, self._waiting = self._waiting, []
        self._give(batch)

    def _give(self, records: list[Record]) -> None:
        log_requests(records)
        self._usage.add(records)
        self._recent.add(records)
        count_requests(self._metrics, records)


def _record_of(call: Call) -> Record:
    """Return the record of a planned request."""
    plan, accepted = call.plan, call.accepted
    policy, decision, usage = plan.policy, plan.decision, accepted.usage
    error, conversation = accepted.error, plan.conversation
    attempts = call.attempts
    reason, team = call.reason, call.key.team
    named = call.named
    record = Record(
        kind=RecordKind.PLANNED,
        id=call.decision_id,
        request_id=call.request_id,
        path=call.path,
        status=call.status,
        ending=call.ending,
        created=time.time(),
        latency_s=time.perf_counter() - call.started_s,
        key=call.key.name,
        team=None if team is None else team.name,
        model=named.model.name,
        trace_id=call.trace.trace_id,
        deployment=named.attempts[-1].deployment_id if named.attempts else None,
        attempts=len(attempts),
        arm=call.arm,
        reason=reason,
        stream=plan.request.stream,
        calls=len(accepted.answer.calls) if accepted.answer else None,
        actual_cost_usd=call.cost_usd,
        first_byte_s=accepted.first_byte_s,
        unverified=plan.unverified,
        risk=plan.risk,
        conversation_id=plan.conversation_id,
        stop=call.stop,
        budget=plan.budget,
        answers=tuple(
            [
                answer_result(each, is_accepted=each is accepted)
                for each in call.candidates
                if each.was_asked
            ]
        ),
        tries=tuple(
            [
                AttemptResult(
                    attempt.model,
                    attempt.deployment_id,
                    attempt.failure or ("cancelled" if attempt.is_cancelled else "answered"),
                    attempt.lost_usd,
                )
                for attempt in attempts
            ]
        ),
        stages=call.stages,
        decision_s=call.decision_s,
        is_late=call.is_late,
        why=call.why,
        is_unfamiliar=plan.is_unfamiliar,
        track=plan.track,
        router_failed=plan.router_failed or call.verifier_failed,
    )
    if policy is not None:
        record.policy, record.policy_name = str(policy.rule), policy.name
        record.policy_kind = policy.kind
    if usage is not None:
        record.prompt_tokens = usage.prompt_tokens
        record.completion_tokens = usage.completion_tokens
        record.usage_is_estimated = usage.is_estimated
    if error is not None:
        record.error, record.cause = error.failure, error.cause
    if call.is_fallback:
        record.fallback_from = plan.models[0].name
    if conversation is not None:
        record.previous_arm = conversation.state.arm
    if accepted.arm is not None:
        record.added_s = call.added_s
    candidates = record.candidates
    if decision is not None:
        _add_decision(record, call, decision)
        record.propensity = None if candidates else decision.propensity
    if candidates or (record.reason == Reason.FALLBACK and record.why is None):
        record.why = explanation_of(record, plan.planner.labels)
    return record


def _add_decision(record: Record, call: Call, decision: Decision) -> None:
    """Add to a record what is known of a routed request only."""
    plan, accepted = call.plan, call.accepted
    arm = call.arm or decision.arm
    record.release = plan.track
    record.probabilities = decision.probabilities
    record.expected_cost_usd = decision.cost_usd
    record.packed_tokens = decision.packed_tokens
    record.familiarity = decision.familiarity
    if plan.baseline is not None and record.actual_cost_usd is not None:
        record.baseline_usd = answer_cost_usd(plan.baseline, accepted.usage, accepted.seconds)
    has_failed: bool | None = None
    if call.ending is not Ending.CLIENT_LEFT and not call.was_cut_off:
        is_error = call.status >= 500 or call.status == 429
        is_incomplete = call.ending in {Ending.FAILED, Ending.BROKEN}
        # Clients' mistakes do not count, because otherwise a client could cause the rollback of a
        # canary by setting impossible deadlines.
        may_be_clients = accepted.error is not None and accepted.error.may_be_client_fault
        has_failed = record.router_failed or ((is_error or is_incomplete) and not may_be_clients)
    record.expectation = expect_answer(call)
    probability = decision.probabilities[arm]
    record.routed = RoutedResult(
        arm=arm,
        reason=decision.reason if accepted.arm is None else call.reason,
        probability=probability,
        size_bytes=plan.request.body.size_bytes,
        release_failed=has_failed,
    )


def expect_answer(call: Call) -> Expectation | None:
    """Return what a complete answer adds to the expected numbers of correct answers.

    For a verified answer, its probability is the verifier's. Returns None if a probability is
    unknown, or if the errors of the probabilities are: without held-out predictions, or before they
    are measured in the first second of an engine.
    """
    plan, accepted = call.plan, call.accepted
    decision, planner = plan.decision, plan.planner
    errors, baseline_arm = planner.policy_errors, planner.baseline_arm
    if decision is None or errors is None or plan.baseline is not planner.baseline:
        return None
    if call.ending is not Ending.COMPLETE or call.status >= 400:
        return None
    arm = accepted.arm or planner.arm_of(accepted.model, decision.arm)
    p_correct = accepted.p_correct
    if p_correct is None:
        p_correct = decision.probabilities.get(arm or "")
    p_baseline = decision.probabilities.get(baseline_arm or "")
    rule = plan.choosing_rule if accepted.arm is None else plan.verified
    if p_correct is None or p_baseline is None or rule is None:
        return None
    if arm == baseline_arm and accepted.p_correct is None:
        return Expectation(p_correct, p_correct)
    error = errors.find(str(rule))
    return None if error is None else error.expect(p_correct, p_baseline)


def answer_result(candidate: Candidate, *, is_accepted: bool) -> AnswerResult:
    """Return what is recorded of an answer that a model was asked for."""
    usage, answer = candidate.usage, candidate.answer
    return AnswerResult(
        model=candidate.model.name,
        seconds=candidate.seconds,
        arm=candidate.arm,
        step=candidate.step,
        is_accepted=is_accepted,
        p_correct=candidate.p_correct,
        first_p_correct=candidate.first_p_correct,
        expected_gain=candidate.expected_gain,
        ungrounded=candidate.ungrounded,
        prompt_tokens=usage.prompt_tokens if usage else None,
        completion_tokens=usage.completion_tokens if usage else None,
        cached_tokens=usage.cached_tokens if usage else 0,
        reasoning_tokens=usage.reasoning_tokens if usage else 0,
        is_estimated=usage.is_estimated if usage else False,
        answer_usd=candidate.answer_usd,
        cost_usd=candidate.cost_usd,
        failure=candidate.failure,
        calls=len(answer.calls) if answer else None,
    )


def _trace(call: Call, record: Record) -> None:
    """Add a planned request's stages, candidates and answer to its spans."""
    trace, accepted = call.trace, call.accepted
    for candidate in call.asked.values():
        usage = candidate.usage
        candidate.trace.record_response(
            response_id=candidate.identity.id,
            response_model=candidate.identity.model,
            prompt_tokens=usage.prompt_tokens if usage else None,
            completion_tokens=usage.completion_tokens if usage else None,
            failure=candidate.failure,
        )
        candidate.trace.set_attributes(
            {
                "accepted": candidate is accepted,
                "p_correct": candidate.p_correct,
                "cost_usd": candidate.cost_usd,
                "failure": candidate.failure,
            }
        )
    is_incomplete = record.ending in {Ending.BROKEN, Ending.CLIENT_LEFT}
    trace.record_response(
        response_id=accepted.identity.id,
        response_model=accepted.identity.model,
        prompt_tokens=record.prompt_tokens,
        completion_tokens=record.completion_tokens,
        failure=str(record.ending) if is_incomplete else None,
    )
