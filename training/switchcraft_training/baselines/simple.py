"""Baselines without a model: thresholds of a feature, and the best arm of each category."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from router_service.measurement.rules import Choices, Kind
from switchcraft_training.baselines.base import Chooser, profiled_costs_usd
from switchcraft_training.data.table import Floats, Table
from switchcraft_training.records import Example

MAX_THRESHOLDS = 100
"""Most thresholds that are tried: the feature's quantiles on the training queries."""


@dataclass(frozen=True, slots=True)
class Heuristic:
    """One arm for queries up to a threshold, another for queries above it (paper, section 4.3).

    The paper profiles thresholds on training data and gives no details. Here, the threshold and the
    two arms are those with the most correct training answers. If several have equally many, the
    cheapest are used.
    """

    kind: ClassVar[Kind] = "heuristic"
    name: str
    feature: Callable[[Example], float]

    def fit(self, train: Table, validation: Table) -> Chooser:  # noqa: ARG002 - part of the protocol
        """Find the best threshold, and the best arm on each side of it."""
        costs_usd = profiled_costs_usd(train)
        values = self._values(train.examples)
        # The outcome of an arm that was not asked a query is replaced by the mean of that arm.
        means = np.nanmean(train.correct, axis=0)
        correct = np.where(np.isnan(train.correct), means, train.correct)
        shares = np.linspace(0, 1, MAX_THRESHOLDS + 1)
        thresholds: list[float] = np.unique(np.quantile(values, shares, method="lower")).tolist()
        rules = []
        for threshold in thresholds:
            below = values <= threshold
            low = best_arm(correct[below], costs_usd)
            high = best_arm(correct[~below], costs_usd) if not below.all() else low
            picked: Choices = np.where(below, low, high)
            right = correct[np.arange(len(values)), picked].sum()
            cost = np.asarray(costs_usd)[picked].sum()
            rules.append(_ThresholdRule(threshold, low, high, float(right), float(cost)))
        best = min(rules, key=lambda rule: (-rule.correct, rule.cost_usd))
        return lambda examples: np.where(
            self._values(examples) <= best.threshold, best.low, best.high
        )

    def _values(self, examples: Sequence[Example]) -> Floats:
        return np.array([float(self.feature(example)) for example in examples])


@dataclass(frozen=True, slots=True)
class _ThresholdRule:
    """A threshold with its two arms, and their correct answers and cost on training queries."""

    threshold: float
    low: int
    high: int
    correct: float
    cost_usd: float


@dataclass(frozen=True, slots=True)
class DatasetOracle:
    """Baseline that chooses the best arm for the query's dataset and category.

    The best arm is the one that was most often correct in training. Among equally good arms, it
    chooses the cheapest. In a category without training queries, it chooses the best arm overall.
    """

    kind: ClassVar[Kind] = "oracle"
    name: str = "dataset oracle"

    def fit(self, train: Table, validation: Table) -> Chooser:  # noqa: ARG002 - part of the protocol
        """Find the best arm of each category."""
        costs_usd = profiled_costs_usd(train)
        overall = best_arm(train.correct, costs_usd)
        rows: dict[tuple[str, str], list[int]] = defaultdict(list)
        for row, example in enumerate(train.examples):
            rows[_category(example)].append(row)
        best = {name: best_arm(train.correct[members], costs_usd) for name, members in rows.items()}
        return lambda examples: np.array(
            [best.get(_category(example), overall) for example in examples]
        )


def best_arm(correct: Floats, costs_usd: tuple[float, ...]) -> int:
    """Return the index of the arm that is most often correct; among equal arms, the cheapest.

    `correct` is (queries, arms). An arm that was asked none of the queries is never returned.
    """
    asked = (~np.isnan(correct)).sum(0)
    accuracy = np.where(asked > 0, np.nansum(correct, axis=0) / np.maximum(asked, 1), -1.0)
    return min(range(len(costs_usd)), key=lambda arm: (-accuracy[arm], costs_usd[arm]))


def _category(example: Example) -> tuple[str, str]:
    return example.dataset, example.category
