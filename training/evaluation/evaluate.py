"""A router against the single models and the oracle, on queries it has not seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from router_service.core.artifact import FrontierPoint, Measure
from router_service.core.selection import parse_policy, select
from training.evaluation.metrics import (
    auc_measure,
    expected_calibration_error,
    mean_measure,
    paired_interval,
)

Floats = NDArray[np.float64]
Choices = NDArray[np.int64]
Kind = Literal["single", "router", "oracle"]

FRONTIER = tuple(
    [f"theta={theta:g}" for theta in (0.3, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)]
    + [f"drift={delta:g}" for delta in (0.3, 0.2, 0.15, 0.1, 0.07, 0.05, 0.03, 0.02, 0.01, 0.001)]
)


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What happened when every arm answered every query: (queries, arms) each."""

    arms: tuple[str, ...]
    correct: Floats
    cost_usd: Floats


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of the main table; the difference is to the best single model, paired by query."""

    kind: Kind
    name: str
    accuracy: Measure
    cost_usd: Measure
    cost_share: float
    difference: float
    difference_interval: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Everything a report says about one set of queries."""

    best_single: str
    entries: tuple[Entry, ...]
    frontier: tuple[FrontierPoint, ...]
    auc: Measure
    calibration_error: float
    arm_share: Mapping[str, float]


def evaluate(
    outcomes: Outcomes,
    probabilities: Floats,
    profiled_costs_usd: Sequence[float],
    policies: Mapping[str, str],
) -> Evaluation:
    """Measure a router's probabilities (queries, arms) under every policy.

    The router decides by profiled costs and pays recorded ones, as it would in service.
    """
    queries = len(outcomes.correct)
    singles = [
        compare(outcomes, "single", arm, np.full(queries, i)) for i, arm in enumerate(outcomes.arms)
    ]
    routers = [
        compare(outcomes, "router", name, route(probabilities, profiled_costs_usd, rule))
        for rule, name in policy_names(policies).items()
    ]
    chosen = route(probabilities, profiled_costs_usd, policies["default"])
    shares = np.bincount(chosen, minlength=len(outcomes.arms)) / queries
    return Evaluation(
        best_single=outcomes.arms[best_single(outcomes)],
        entries=(
            *sorted(singles, key=lambda entry: -entry.accuracy.value),
            *routers,
            compare(outcomes, "oracle", "oracle", oracle(outcomes)),
        ),
        frontier=frontier(outcomes, probabilities, profiled_costs_usd),
        auc=auc_measure(outcomes.correct, probabilities),
        calibration_error=expected_calibration_error(outcomes.correct, probabilities),
        arm_share=dict(zip(outcomes.arms, shares.tolist(), strict=True)),
    )


def policy_names(policies: Mapping[str, str]) -> dict[str, str]:
    """Return how to call each rule: the names that stand for it, and the rule."""
    names: dict[str, list[str]] = {}
    for name, rule in policies.items():
        names.setdefault(rule, []).append(name)
    return {rule: f"{', '.join(called)} ({rule})" for rule, called in names.items()}


def compare(outcomes: Outcomes, kind: Kind, name: str, choices: Choices) -> Entry:
    """Measure one way of choosing arms, (queries,), against the best single model."""
    rows = np.arange(len(choices))
    best = best_single(outcomes)
    ours, theirs = outcomes.correct[rows, choices], outcomes.correct[:, best]
    paid = outcomes.cost_usd[rows, choices]
    return Entry(
        kind=kind,
        name=name,
        accuracy=mean_measure(ours),
        cost_usd=mean_measure(paid),
        cost_share=float(paid.mean() / outcomes.cost_usd[:, best].mean()),
        difference=float((ours - theirs).mean()),
        difference_interval=paired_interval(ours, theirs),
    )


def frontier(
    outcomes: Outcomes, probabilities: Floats, profiled_costs_usd: Sequence[float]
) -> tuple[FrontierPoint, ...]:
    """Measure accuracy and cost over a sweep of thresholds and drifts."""
    entries = [
        compare(outcomes, "router", rule, route(probabilities, profiled_costs_usd, rule))
        for rule in FRONTIER
    ]
    return tuple(
        FrontierPoint(policy=entry.name, accuracy=entry.accuracy, cost_usd=entry.cost_usd)
        for entry in entries
    )


def best_single(outcomes: Outcomes) -> int:
    """Return the most accurate arm; of equal ones the cheapest."""
    accuracy, cost = outcomes.correct.mean(0), outcomes.cost_usd.mean(0)
    return min(range(len(outcomes.arms)), key=lambda arm: (-accuracy[arm], cost[arm]))


def route(probabilities: Floats, costs_usd: Sequence[float], rule: str) -> Choices:
    """Return the arm that a policy picks for each query, (queries,)."""
    policy = parse_policy(rule)
    picked = [select(row, costs_usd, policy).arm for row in probabilities.tolist()]
    return np.array(picked, dtype=np.int64)


def oracle(outcomes: Outcomes) -> Choices:
    """Return the cheapest correct arm of each query, the dearest where none is (section 3.3)."""
    cheapest_correct = np.where(outcomes.correct == 1, outcomes.cost_usd, np.inf).argmin(1)
    solvable = (outcomes.correct == 1).any(1)
    picked: Choices = np.where(solvable, cheapest_correct, outcomes.cost_usd.argmax(1))
    return picked
