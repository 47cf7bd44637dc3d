"""Records of requests that have ended: metrics, usage, log line, store."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from router_service.core.decision_record import CandidateRecord, DecisionRecord
from router_service.core.errors import UpstreamError
from router_service.core.money import to_nusd
from router_service.core.reasons import Reason
from router_service.measurement.expectations import Expectation
from router_service.policies.explanations import explanation_of
from router_service.requests.candidates import Candidate, answer_cost_usd
from router_service.requests.exchange import CLIENT_LEFT, Ending, Exchange, RequestInfo
from router_service.requests.expecting import expect_answer
from router_service.router import Decision
from router_service.store.records import GuardedStore
from router_service.telemetry.logs import log_request
from router_service.telemetry.metrics import NO_MODEL, Metrics, status_label
from router_service.telemetry.recent_requests import (
    MICRO,
    RecentRequest,
    RecentRequests,
    RequestOutcome,
)
from router_service.telemetry.usage import NO_POLICY, UsageHistory
from router_service.tracing import AttributeValue, ResponseInfo

API_PREFIX = "/v1/"

MAX_PATH = 200
"""Longest part of a client's path that is logged, in characters. Queries are never logged."""

QUIET_PATHS = frozenset(
    "/healthz /readyz /health/liveliness /health/liveness /health/readiness /metrics "
    "/ui/api/traffic/requests /ui/api/traffic/overview".split()
)
"""Paths that are polled every few seconds; logged at level debug."""

_LOGGED = (
    "model", "deployment", "attempts", "arm", "release", "reason", "policy",
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
        usage: UsageHistory,
        recent: RecentRequests,
        on_ended: Callable[[Exchange], None] = lambda _: None,
    ) -> None:
        """Store the parameters; `on_ended` gets each recorded exchange, and must not block."""
        self._usage = usage
        self._recent = recent
        self._metrics = metrics
        self._store = store
        self._on_ended = on_ended

    def answered(self, exchange: Exchange) -> None:
        """Record a request that was sent to a model."""
        info, plan, accepted, asked = (
            exchange.info,
            exchange.plan,
            exchange.accepted,
            exchange.asked,
        )
        policy, decision, usage = plan.applied_policy, plan.decision, accepted.usage
        cost_usd = exchange.cost_usd
        candidates = [
            candidate_record(arm, candidate, is_accepted=candidate is accepted)
            for arm, candidate in asked.items()
        ]
        self._count(exchange)
        if asked:
            self._count_candidates(exchange, asked)
        baseline_usd = None
        if decision is not None:
            baseline_usd = self._count_routed(exchange, decision, cost_usd)
        expectation = expect_answer(exchange)
        if expectation is not None and policy is not None:
            self._count_expectation(expectation, accepted.model.name, policy.kind)
        info.record = record = DecisionRecord(
            id=info.decision_id,
            created=time.time(),
            key=info.key,
            team=info.team,
            model=accepted.model.name,
            deployment=exchange.deployment_id,
            attempts=len(exchange.attempts),
            arm=exchange.arm,
            release=plan.track if decision else None,
            reason=exchange.reason,
            policy=str(policy.rule) if policy else None,
            policy_name=policy.name if policy else None,
            propensity=decision.propensity if decision and not asked else None,
            probabilities=decision.probabilities if decision else None,
            expected_cost_usd=decision.cost_usd if decision else None,
            packed_tokens=decision.packed_tokens if decision else None,
            stream=plan.request.chat.stream,
            status=exchange.status,
            ending=exchange.ending,
            prompt_tokens=usage.prompt_tokens if usage else None,
            completion_tokens=usage.completion_tokens if usage else None,
            calls=len(accepted.answer.calls) if accepted.answer else None,
            usage_is_estimated=usage.is_estimated if usage else None,
            actual_cost_usd=cost_usd,
            latency_s=time.perf_counter() - info.started_s,
            first_byte_s=accepted.first_byte_s,
            unverified=plan.unverified,
            risk=plan.risk,
            familiarity=decision.familiarity if decision else None,
            previous_arm=plan.conversation.state.arm if plan.conversation else None,
            conversation_id=plan.conversation_id,
            candidates=tuple(candidates) or None,
            stop=exchange.stop,
            budget=plan.budget,
        )
        self._store.save(record)
        self._list_answered(exchange, record)
        sent = [candidate for candidate in exchange.candidates if candidate.was_asked]
        self._usage.add(
            info.api_key,
            record.model,
            record.policy_label or NO_POLICY,
            is_error=is_error(record.status, exchange.ending),
            is_unfamiliar=plan.is_unfamiliar,
            expectation=expectation,
            latency_s=record.latency_s,
            cost_usd=cost_usd,
            baseline_usd=baseline_usd,
            tokens=[candidate.usage for candidate in sent if candidate.usage is not None],
            candidates=len(sent),
        )
        for candidate in exchange.candidates:
            candidate.opened = None  # the log may keep the exchange for a while, without bodies
            error: BaseException | None = candidate.error
            while error is not None:
                # A traceback refers to frames with what was read of the answer, and these to the
                # error. Only a full garbage collection would free them.
                error.__traceback__ = None
                error = error.__cause__ or error.__context__
        self._on_ended(exchange)
        if info.trace.trace_id is not None:
            is_incomplete = exchange.ending in {Ending.BROKEN, Ending.CLIENT_LEFT}
            info.trace.record_stages(exchange.stages)
            for candidate in asked.values():
                candidate.trace.set_attributes(
                    {
                        "accepted": candidate is accepted,
                        "p_correct": candidate.p_correct,
                        "cost_usd": candidate.cost_usd,
                        "failure": candidate.failure,
                    }
                )
            info.trace.record_response(
                ResponseInfo(
                    response_id=accepted.identity.id,
                    response_model=accepted.identity.model,
                    prompt_tokens=record.prompt_tokens,
                    completion_tokens=record.completion_tokens,
                    failure=str(exchange.ending) if is_incomplete else None,
                )
            )
        values = vars(record)
        fields = {name: value for name in _LOGGED if (value := values[name]) is not None}
        if asked:
            fields["candidates"] = len(asked)
            if accepted.p_correct is not None:
                fields["p_correct"] = accepted.p_correct
        if accepted.error is not None:
            fields["cause"] = accepted.error.cause
        why = exchange.why
        if record.reason == Reason.FALLBACK or asked:
            why = explanation_of(record, plan.planner.labels)
        if why is not None:
            fields["why"] = why
        _log(info, fields)

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
        self._usage.add(info.api_key, model, NO_POLICY, is_error=is_error(status, ending))
        self._list(info, status, ending, model, error)
        fields: dict[str, AttributeValue] = {"model": model, "reason": "passed"}
        fields |= {"status": status, "ending": ending}
        if error is not None:
            fields["cause"] = error.cause
        _log(info, fields)

    def refused(self, info: RequestInfo, status: int) -> None:
        """Record a request that was refused before a model was chosen."""
        self._metrics.child(self._metrics.requests, NO_MODEL, "none", status_label(status)).inc()
        self._usage.add(
            info.api_key, NO_MODEL, NO_POLICY, is_error=is_error(status, Ending.COMPLETE)
        )
        self._list(info, status, Ending.COMPLETE)
        cause = {} if info.refusal is None else {"cause": info.refusal}
        _log(info, {"status": status, **cause})

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
                self._usage.add(info.api_key, NO_MODEL, NO_POLICY, is_error=True)
                self._list(info, status, Ending.COMPLETE)
            is_quiet = path in QUIET_PATHS and status < 400
            fields: dict[str, AttributeValue] = {"method": method, "path": path[:MAX_PATH]}
            _log(info, {**fields, "status": status}, is_quiet=is_quiet)

    def _list_answered(self, exchange: Exchange, record: DecisionRecord) -> None:
        """Add a request that was sent to a model to the list of recent ones."""
        info, error, cost_usd = exchange.info, exchange.accepted.error, record.actual_cost_usd
        conversation = exchange.plan.conversation
        self._recent.add(
            RecentRequest(
                ended_us=int(record.created * MICRO),
                id=record.id,
                request_id=_clients_id(info),
                key=record.key,
                team=record.team,
                path=info.path,
                model=record.model,
                deployment=record.deployment,
                arm=record.arm,
                policy=record.policy_label,
                reason=record.reason,
                outcome=outcome_of(exchange.status, exchange.ending),
                status=exchange.status,
                ending=exchange.ending,
                error=None if error is None else error.failure,
                attempts=record.attempts,
                latency_s=record.latency_s,
                first_byte_s=record.first_byte_s,
                cost_nusd=None if cost_usd is None else to_nusd(cost_usd),
                prompt_tokens=record.prompt_tokens,
                completion_tokens=record.completion_tokens,
                candidates=None if record.candidates is None else len(record.candidates),
                unverified=record.unverified,
                conversation=None if conversation is None else conversation.state.id,
            )
        )

    def _list(
        self,
        info: RequestInfo,
        status: int,
        ending: Ending,
        model: str | None = None,
        error: UpstreamError | None = None,
    ) -> None:
        """Add a request without a record to the list; without a model, none was asked."""
        self._recent.add(
            RecentRequest(
                ended_us=int(time.time() * MICRO),
                id=info.decision_id,
                request_id=_clients_id(info),
                key=info.key,
                team=info.team,
                path=info.path,
                model=model,
                deployment=None,
                arm=None,
                policy=None,
                reason=None if model is None else Reason.PASSED,
                outcome=outcome_of(status, ending, is_refusal=model is None),
                status=status,
                ending=Ending.CLIENT_LEFT if status == CLIENT_LEFT else ending,
                error=info.refusal if error is None else error.failure,
                attempts=0,
                latency_s=time.perf_counter() - info.started_s,
                first_byte_s=None,
                cost_nusd=None,
                prompt_tokens=None,
                completion_tokens=None,
                candidates=None,
                unverified=None,
                conversation=None,
            )
        )

    def _count(self, exchange: Exchange) -> None:
        """Update the metrics of every answer: status, times, attempts, tokens, cost."""
        metrics, plan, accepted = self._metrics, exchange.plan, exchange.accepted
        model, child = accepted.model.name, metrics.child
        applied = plan.applied_policy
        policy = NO_POLICY if applied is None else applied.kind
        child(metrics.requests, model, policy, status_label(exchange.status)).inc()
        for stage in exchange.stages:
            child(metrics.stage_seconds, stage.name).observe(stage.seconds)
        if plan.router_failed or exchange.verifier_failed:
            child(metrics.router_failures, plan.track).inc()
        if exchange.is_fallback:
            child(metrics.fallbacks, plan.candidates[0].name, model).inc()
        if plan.unverified is not None:
            child(metrics.unverified_requests, plan.unverified).inc()
        if plan.request.chat.stream and accepted.first_byte_s is not None:
            child(metrics.time_to_first_token, model).observe(accepted.first_byte_s)
        if exchange.ending is Ending.CLIENT_LEFT:
            metrics.client_disconnects.inc()
        elif exchange.ending is Ending.BROKEN:
            child(metrics.broken_streams, model).inc()
        for attempt in exchange.attempts:
            kind = attempt.failure or ("cancelled" if attempt.is_cancelled else "answered")
            child(metrics.attempts, attempt.model, attempt.deployment_id, kind).inc()
            if attempt.lost_usd:
                child(metrics.cost_usd, attempt.model, "gateway").inc(attempt.lost_usd)
        for candidate in exchange.candidates:
            if candidate.was_asked:
                self._count_answer(candidate)
        is_answered = exchange.ending is Ending.COMPLETE and exchange.status < 400
        if is_answered and accepted.answer_usd is None:
            child(metrics.unpriced, model, "price").inc()

    def _count_answer(self, candidate: Candidate) -> None:
        """Update the metrics of one upstream's answer: its duration, tokens and cost."""
        metrics, child, usage = self._metrics, self._metrics.child, candidate.usage
        cost_usd = candidate.cost_usd
        model = candidate.model.name
        child(metrics.upstream_seconds, model).observe(candidate.seconds)
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
        cost_usd = candidate.answer_usd
        if cost_usd is not None:
            child(metrics.cost_usd, model, source).inc(cost_usd)

    def _count_candidates(self, exchange: Exchange, asked: Mapping[str, Candidate]) -> None:
        """Update the metrics of a verified request's candidates."""
        metrics, child = self._metrics, self._metrics.child
        for arm, candidate in asked.items():
            outcome = "rejected" if candidate.is_complete else "failed"
            if candidate is exchange.accepted:
                outcome = "accepted"
            else:
                child(metrics.rejected_cost_usd, arm).inc(candidate.cost_usd or 0)
            child(metrics.candidates, arm, outcome).inc()
            child(metrics.release_candidates, exchange.plan.track, outcome).inc()
        if exchange.accepted.arm is not None:
            metrics.verification_steps.observe(exchange.verification_steps)
            metrics.verification_added_seconds.observe(exchange.added_s)

    def _count_expectation(self, expectation: Expectation, model: str, policy: str) -> None:
        """Update the metrics of how many answers are expected to be correct."""
        metrics, child = self._metrics, self._metrics.child
        child(metrics.estimated_requests, model, policy).inc()
        child(metrics.expected_correct, model, policy).inc(expectation.correct)
        baseline_correct = expectation.baseline_correct
        child(metrics.baseline_expected_correct, model, policy).inc(baseline_correct)

    def _count_routed(
        self, exchange: Exchange, decision: Decision, cost_usd: float | None
    ) -> float | None:
        """Update the metrics of routed requests: the decision, savings, the release's results.

        Return what the same usage would have cost with the baseline model, if that is known.
        """
        metrics, plan, accepted = self._metrics, exchange.plan, exchange.accepted
        baseline_usd: float | None = None
        child = metrics.child
        arm = exchange.arm or decision.arm
        reason = decision.reason if accepted.arm is None else exchange.reason
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
            baseline_usd = answer_cost_usd(plan.baseline, accepted.usage, accepted.seconds)
            if baseline_usd is not None:
                child(metrics.routed_cost_usd, accepted.model.name).inc(cost_usd)
                child(metrics.baseline_cost_usd, accepted.model.name).inc(baseline_usd)
        if exchange.ending is not Ending.CLIENT_LEFT and not exchange.was_cut_off:
            probability = accepted.p_correct
            if probability is None:
                probability = decision.probabilities[arm]
            self._count_release(exchange, probability, cost_usd)
        return baseline_usd

    def _count_release(
        self, exchange: Exchange, probability: float, cost_usd: float | None
    ) -> None:
        """Update the results of the release that decided, whose answer has this probability."""
        metrics, plan, error = self._metrics, exchange.plan, exchange.accepted.error
        child, track = metrics.child, plan.track
        is_error = exchange.status >= 500 or exchange.status == 429
        is_incomplete = exchange.ending in {Ending.FAILED, Ending.BROKEN}
        # Clients' mistakes do not count, because otherwise a client could cause the rollback of a
        # canary by setting impossible deadlines.
        may_be_clients = error is not None and error.may_be_client_fault
        is_upstreams = (is_error or is_incomplete) and not may_be_clients
        has_failed = plan.router_failed or exchange.verifier_failed or is_upstreams
        child(metrics.release_requests, track).inc()
        child(metrics.release_failures, track).inc(has_failed)
        child(metrics.release_cost_usd, track).inc(cost_usd or 0)
        seconds = time.perf_counter() - exchange.info.started_s
        child(metrics.release_seconds, track).observe(seconds)
        if exchange.ending is Ending.COMPLETE and exchange.status < 400:
            child(metrics.release_expected_correct, track).inc(probability)
        if plan.is_unfamiliar:
            child(metrics.release_unfamiliar_requests, track).inc()
        if plan.trial is not None:
            plan.trial.observe(track, has_failed=has_failed, cost_usd=cost_usd)


def is_error(status: int, ending: Ending) -> bool:
    """Return whether a request failed; a client that left is no error."""
    return (status >= 400 and status != CLIENT_LEFT) or ending in {Ending.FAILED, Ending.BROKEN}


def outcome_of(status: int, ending: Ending, *, is_refusal: bool = False) -> RequestOutcome:
    """Return how a request ended; `is_refusal` says that the gateway itself refused it."""
    if is_error(status, ending):
        return RequestOutcome.REFUSED if is_refusal else RequestOutcome.FAILED
    has_left = status == CLIENT_LEFT or ending is Ending.CLIENT_LEFT
    return RequestOutcome.LEFT if has_left else RequestOutcome.ANSWERED


def candidate_record(arm: str, candidate: Candidate, *, is_accepted: bool) -> CandidateRecord:
    """Return what the decision record says about the candidate of an arm that was asked."""
    usage, answer = candidate.usage, candidate.answer
    return CandidateRecord(
        arm=arm,
        model=candidate.model.name,
        step=candidate.step,
        is_accepted=is_accepted,
        p_correct=candidate.p_correct,
        first_p_correct=candidate.first_p_correct,
        expected_gain=candidate.expected_gain,
        ungrounded=candidate.ungrounded,
        prompt_tokens=usage.prompt_tokens if usage else None,
        completion_tokens=usage.completion_tokens if usage else None,
        cost_usd=candidate.cost_usd,
        seconds=candidate.seconds,
        failure=candidate.failure,
        calls=len(answer.calls) if answer else None,
    )


def _clients_id(info: RequestInfo) -> str | None:
    """Return the id that the client has sent, if any."""
    return None if info.request_id == info.decision_id else info.request_id


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
    if info.team is not None:
        line["team"] = info.team
    if info.trace.trace_id is not None:
        line["trace_id"] = info.trace.trace_id
        ids = {"decision_id": info.decision_id, "request_id": info.request_id}
        info.trace.set_attributes({**ids, **fields})
    log_request({**line, **fields}, is_quiet=is_quiet)
