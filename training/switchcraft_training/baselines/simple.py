"""Baselines without a model: one arm, random choice, one threshold, and the oracles."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from switchcraft_training.baselines.base import Chooser, profiled_costs_usd
from switchcraft_training.data.table import Choices, Floats, Table
from switchcraft_training.records import Example

MAX_THRESHOLDS = 100
"""Number of quantiles of the training queries that are tried as thresholds."""


@dataclass(frozen=True, slots=True)
class SingleModel:
    """The same arm for every query."""

    arm: str

    @property
    def name(self) -> str:
        """The arm's name."""
        return self.arm

    def fit(self, train: Table, validation: Table) -> Chooser:  # noqa: ARG002 - the protocol's
        """Look up the arm. Raises ValueError if the table has no arm of that name."""
        index = train.arms.index(self.arm)
        return Chooser(lambda table: np.full(len(table.examples), index))


@dataclass(frozen=True, slots=True)
class RandomChoice:
    """A random arm, each with the same probability."""

    seed: int
    name: str = "random"

    def fit(self, train: Table, validation: Table) -> Chooser:  # noqa: ARG002 - the protocol's
        """Fit nothing. The same queries always get the same arms."""
        return Chooser(
            lambda table: np.random.default_rng(self.seed).integers(
                len(table.arms), size=len(table.examples)
            )
        )


@dataclass(frozen=True, slots=True)
class Heuristic:
    """One arm for queries up to a threshold, another for queries above it (paper, section 4.3).

    The paper profiles thresholds on training data and gives no details. Here the threshold and the
    two arms are those with the most correct training answers, and among equal ones the cheapest.
    """

    name: str
    feature: Callable[[Example], float]

    def fit(self, train: Table, validation: Table) -> Chooser:  # noqa: ARG002 - the protocol's
        """Find the best threshold, and the best arm on each side of it."""
        costs_usd = profiled_costs_usd(train)
        values = self._values(train)
        # An arm that was not asked a query counts with its mean.
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
        return Chooser(
            lambda table: np.where(self._values(table) <= best.threshold, best.low, best.high)
        )

    def _values(self, table: Table) -> Floats:
        return np.array([float(self.feature(example)) for example in table.examples])


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
    """The arm that was most often correct in training on the query's dataset and category.

    Among equal arms, it takes the cheaper one; in an unseen category, the best arm overall.
    """

    name: str = "dataset oracle"

    def fit(self, train: Table, validation: Table) -> Chooser:  # noqa: ARG002 - the protocol's
        """Find the best arm of each category."""
        costs_usd = profiled_costs_usd(train)
        overall = best_arm(train.correct, costs_usd)
        rows: dict[tuple[str, str], list[int]] = defaultdict(list)
        for row, example in enumerate(train.examples):
            rows[_category(example)].append(row)
        best = {name: best_arm(train.correct[members], costs_usd) for name, members in rows.items()}
        return Chooser(
            lambda table: np.array(
                [best.get(_category(example), overall) for example in table.examples]
            )
        )


@dataclass(frozen=True, slots=True)
class Oracle:
    """The cheapest correct arm, by the labels, or the most expensive if none is (section 3.3).

    If labels are probabilities, it takes the cheapest of the most probable arms. It never takes an
    arm that was not asked.
    """

    name: str = "oracle"

    def fit(self, train: Table, validation: Table) -> Chooser:  # noqa: ARG002 - the protocol's
        """Fit nothing, because the labels are in the table that it chooses for."""

        def choose(table: Table) -> Choices:
            asked = ~np.isnan(table.correct)
            correct = np.where(asked, table.correct, -1.0)
            best = correct.max(axis=1, keepdims=True)
            cheapest = np.where(asked & (correct == best), table.cost_usd, np.inf).argmin(1)
            dearest = np.where(asked, table.cost_usd, -np.inf).argmax(1)
            picked: Choices = np.where(best[:, 0] > 0, cheapest, dearest)
            return picked

        return Chooser(choose)


def best_arm(correct: Floats, costs_usd: tuple[float, ...]) -> int:
    """Return the arm that is most often correct, (queries, arms); among equal arms the cheapest.

    It never returns an arm that was asked none of the queries.
    """
    asked = (~np.isnan(correct)).sum(0)
    accuracy = np.where(asked > 0, np.nansum(correct, axis=0) / np.maximum(asked, 1), -1.0)
    return min(range(len(costs_usd)), key=lambda arm: (-accuracy[arm], costs_usd[arm]))


def _category(example: Example) -> tuple[str, str]:
    return example.dataset, example.category
