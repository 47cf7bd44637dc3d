"""The metrics of requests that have ended, from their records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from router_service.core.record import AnswerResult, Ending, Record, RecordKind, RoutedResult
from router_service.telemetry.metrics import NO_MODEL, Metrics, status_label
from router_service.telemetry.usage import NO_POLICY

_UNMEASURED = frozenset({RecordKind.OWN, RecordKind.SHED})
"""Kinds of requests that are no requests to models; `shed_requests` counts the latter."""


def count_requests(metrics: Metrics, records: Iterable[Record]) -> None:
    """Add these requests to the metrics, each counter once for all of them."""
    counts: defaultdict[tuple[Any, ...], float] = defaultdict(float)
    for record in records:
        if record.kind in _UNMEASURED:
            continue
        model, policy = record.model or NO_MODEL, record.policy_kind or NO_POLICY
        counts[metrics.requests, model, policy, status_label(record.status)] += 1
        if record.ending is Ending.CLIENT_LEFT:
            counts[(metrics.client_disconnects,)] += 1
        elif record.ending is Ending.BROKEN:
            counts[metrics.broken_streams, model] += 1
        if record.kind is RecordKind.PLANNED:
            _count_planned(metrics, counts, record, model)
    for key, amount in counts.items():
        metrics.child(*key).inc(amount)


def _count_planned(  # noqa: PLR0912 - one after the other, in the order of the metrics
    metrics: Metrics, counts: defaultdict[tuple[Any, ...], float], record: Record, model: str
) -> None:
    child = metrics.child
    for stage in record.stages:
        child(metrics.stage_seconds, stage.name).observe(stage.seconds)
    if record.router_failed:
        counts[metrics.router_failures, record.track] += 1
    if record.fallback_from is not None:
        counts[metrics.fallbacks, record.fallback_from, model] += 1
    if record.unverified is not None:
        counts[metrics.unverified_requests, record.unverified] += 1
    if record.stream and record.first_byte_s is not None:
        child(metrics.time_to_first_token, model).observe(record.first_byte_s)
    for name, deployment_id, result, lost_usd in record.tries:
        counts[metrics.attempts, name, deployment_id, result] += 1
        if lost_usd:
            counts[metrics.cost_usd, name, "gateway"] += lost_usd
    is_priced = False
    for answer in record.answers:
        is_priced = is_priced or (answer.is_accepted and answer.answer_usd is not None)
        _count_answer(metrics, counts, answer)
        if answer.arm is not None:
            outcome = "failed" if answer.failure is not None else "rejected"
            if answer.is_accepted:
                outcome = "accepted"
            else:
                counts[metrics.rejected_cost_usd, answer.arm] += answer.cost_usd or 0
            counts[metrics.candidates, answer.arm, outcome] += 1
            counts[metrics.release_candidates, record.track, outcome] += 1
    is_answered = record.ending is Ending.COMPLETE and record.status < 400
    if is_answered and not is_priced:
        counts[metrics.unpriced, model, "price"] += 1
    if record.verification_steps is not None:
        metrics.verification_steps.observe(record.verification_steps)
        metrics.verification_added_seconds.observe(record.added_s)
    if record.routed is not None:
        _count_routed(metrics, counts, record, record.routed)


def _count_answer(
    metrics: Metrics, counts: defaultdict[tuple[Any, ...], float], answer: AnswerResult
) -> None:
    """Count the duration, the tokens and the cost of one answer."""
    model, source = answer.model, "gateway" if answer.is_estimated else "upstream"
    metrics.child(metrics.upstream_seconds, model).observe(answer.seconds)
    if answer.prompt_tokens is not None and answer.completion_tokens is not None:
        counts[metrics.tokens, model, "prompt", source] += answer.prompt_tokens
        counts[metrics.tokens, model, "completion", source] += answer.completion_tokens
        # Counted even if they are 0, so that the series exist.
        counts[metrics.tokens, model, "cached", source] += answer.cached_tokens
        counts[metrics.tokens, model, "reasoning", source] += answer.reasoning_tokens
    if answer.answer_usd is not None:
        counts[metrics.cost_usd, model, source] += answer.answer_usd


def _count_routed(
    metrics: Metrics,
    counts: defaultdict[tuple[Any, ...], float],
    record: Record,
    routed: RoutedResult,
) -> None:
    """Count a routed request: the decision, the saving, and the results of its release."""
    child, arm, model = metrics.child, routed.arm, record.model
    counts[metrics.decisions, arm, routed.reason] += 1
    child(metrics.chosen_probability, arm).observe(routed.probability)
    metrics.expected_regret.observe(routed.expected_regret)
    metrics.packed_tokens.observe(record.packed_tokens or 0)
    metrics.request_bytes.observe(routed.size_bytes)
    if record.familiarity is not None:
        metrics.familiarity.observe(record.familiarity)
    if record.is_unfamiliar:
        counts[metrics.unfamiliar_requests, arm] += 1
    cost_usd = record.actual_cost_usd or 0.0
    if record.baseline_usd is not None:
        counts[metrics.routed_cost_usd, model] += cost_usd
        counts[metrics.baseline_cost_usd, model] += record.baseline_usd
    expectation = record.expectation
    if expectation is not None:
        group = model, record.policy_kind
        counts[metrics.estimated_requests, *group] += 1
        counts[metrics.expected_correct, *group] += expectation.correct
        counts[metrics.baseline_expected_correct, *group] += expectation.baseline_correct
    if routed.release_failed is not None:
        release = record.release
        counts[metrics.release_requests, release] += 1
        counts[metrics.release_failures, release] += routed.release_failed
        counts[metrics.release_cost_usd, release] += cost_usd
        child(metrics.release_seconds, str(release)).observe(record.latency_s)
        if record.ending is Ending.COMPLETE and record.status < 400:
            counts[metrics.release_expected_correct, release] += routed.p_correct
        if record.is_unfamiliar:
            counts[metrics.release_unfamiliar_requests, release] += 1
