"""The metrics of requests that have ended, from their records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from router_service.core.record import (
    CLIENT_LEFT,
    AnswerResult,
    Ending,
    Record,
    RecordKind,
    RoutedResult,
)
from router_service.telemetry.metrics import NO_MODEL, NO_RELEASE, Metrics, status_label
from router_service.telemetry.usage import NO_POLICY

_UNMEASURED = frozenset({RecordKind.OWN, RecordKind.SHED})
"""Kinds of requests that are no requests to models; `refused_requests` counts the latter."""

BROKEN = "broken"
"""Label `status` of requests whose stream broke after its first byte was sent to the client."""


def count_requests(metrics: Metrics, records: Iterable[Record]) -> None:
    """Add these requests to the metrics, each counter once for all of them."""
    counts: defaultdict[tuple[Any, ...], float] = defaultdict(float)
    for record in records:
        if record.kind in _UNMEASURED:
            continue
        model, policy = record.model or NO_MODEL, record.policy_kind or NO_POLICY
        release = record.release or NO_RELEASE
        status = status_label(CLIENT_LEFT if record.ending is Ending.CLIENT_LEFT else record.status)
        if record.ending is Ending.BROKEN:
            status = BROKEN
        counts[metrics.requests, model, policy, status, release] += 1
        if record.kind is RecordKind.PLANNED:
            _count_planned(metrics, counts, record, model, release)
    for key, amount in counts.items():
        metrics.child(*key).inc(amount)


def _count_planned(
    metrics: Metrics,
    counts: defaultdict[tuple[Any, ...], float],
    record: Record,
    model: str,
    release: str,
) -> None:
    child = metrics.child
    child(metrics.request_seconds, release).observe(record.latency_s)
    metrics.decision_seconds.observe(record.decision_s)
    if record.is_late:
        counts[metrics.decisions_over_budget,] += 1
    for stage in record.stages:
        child(metrics.stage_seconds, stage.name).observe(stage.seconds)
    if record.router_failed:
        counts[metrics.router_failures, record.track] += 1
    if record.fallback_from is not None:
        counts[metrics.fallbacks, record.fallback_from, model] += 1
    if record.stream and record.first_byte_s is not None:
        child(metrics.time_to_first_token, model).observe(record.first_byte_s)
    for name, deployment_id, result, lost_usd in record.tries:
        counts[metrics.attempts, name, deployment_id, result] += 1
        if lost_usd:
            counts[metrics.cost_usd, name, "gateway", release] += lost_usd
    for answer in record.answers:
        _count_answer(metrics, counts, answer, release)
        if answer.arm is not None:
            outcome = "failed" if answer.failure is not None else "rejected"
            if answer.is_accepted:
                outcome = "accepted"
            counts[metrics.candidates, answer.arm, record.track, outcome] += 1
    if record.routed is not None:
        _count_routed(metrics, counts, record, record.routed, release)


def _count_answer(
    metrics: Metrics,
    counts: defaultdict[tuple[Any, ...], float],
    answer: AnswerResult,
    release: str,
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
        counts[metrics.cost_usd, model, source, release] += answer.answer_usd


def _count_routed(
    metrics: Metrics,
    counts: defaultdict[tuple[Any, ...], float],
    record: Record,
    routed: RoutedResult,
    release: str,
) -> None:
    """Count a routed request: the decision, the saving, and the results of its release."""
    child, arm, model = metrics.child, routed.arm, record.model
    counts[metrics.decisions, arm, routed.reason] += 1
    child(metrics.chosen_probability, arm).observe(routed.probability)
    metrics.packed_tokens.observe(record.packed_tokens or 0)
    metrics.request_bytes.observe(routed.size_bytes)
    if record.is_unfamiliar:
        counts[metrics.unfamiliar_requests, arm, release] += 1
    if record.baseline_usd is not None:
        counts[metrics.compared_cost_usd, model, "routed"] += record.actual_cost_usd or 0.0
        counts[metrics.compared_cost_usd, model, "baseline"] += record.baseline_usd
    if record.added_s is not None:
        metrics.verification_added_seconds.observe(record.added_s)
    expectation = record.expectation
    if expectation is not None:
        group = model, record.policy_kind, release
        counts[metrics.estimated_requests, *group] += 1
        counts[metrics.expected_correct, *group, "routed"] += expectation.correct
        counts[metrics.expected_correct, *group, "baseline"] += expectation.baseline_correct
    if routed.release_failed:
        counts[metrics.failed_requests, release] += 1
