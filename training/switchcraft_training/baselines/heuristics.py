"""One number of a query, one threshold, two arms (paper, section 4.3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from switchcraft_training.baselines.base import Chooser, profiled_costs_usd
from switchcraft_training.baselines.simple import best_arm
from switchcraft_training.evaluation.evaluate import Choices
from switchcraft_training.evaluation.table import Floats, Table
from switchcraft_training.records import Example

MAX_THRESHOLDS = 100
"""Quantiles of the training queries: lengths take more values than are worth a try."""


@dataclass(frozen=True, slots=True)
class Heuristic:
    """Queries up to a threshold go to one arm, those above to another.

    The paper profiles thresholds on training data and says no more of how; here threshold and arms
    are those with the most correct training answers, of equal ones those that cost less.
    """

    name: str
    feature: Callable[[Example], float]

    def fit(self, train: Table, validation: Table) -> Chooser:  # noqa: ARG002 - the protocol's
        """Find the best threshold and the best arm on either side of it."""
        costs_usd = profiled_costs_usd(train)
        values, known = self._values(train), _filled(train.correct)
        rules = [_rule(values, known, at, costs_usd) for at in _thresholds(values)]
        best = min(rules, key=lambda rule: (-rule.correct, rule.cost_usd))
        return Chooser(lambda table: np.where(self._values(table) <= best.at, best.low, best.high))

    def _values(self, table: Table) -> Floats:
        return np.array([float(self.feature(example)) for example in table.examples])


@dataclass(frozen=True, slots=True)
class _Rule:
    """A threshold with its arms, and what they got right and cost on training queries."""

    at: float
    low: int
    high: int
    correct: float
    cost_usd: float


def _rule(values: Floats, correct: Floats, at: float, costs_usd: tuple[float, ...]) -> _Rule:
    below = values <= at
    low = best_arm(correct[below], costs_usd)
    high = best_arm(correct[~below], costs_usd) if not below.all() else low
    picked: Choices = np.where(below, low, high)
    right = correct[np.arange(len(values)), picked].sum()
    cost = np.asarray(costs_usd)[picked].sum()
    return _Rule(at, low, high, float(right), float(cost))


def _thresholds(values: Floats) -> list[float]:
    """Return values that training queries have; the largest parts nothing."""
    shares = np.linspace(0, 1, MAX_THRESHOLDS + 1)
    cuts: list[float] = np.unique(np.quantile(values, shares, method="lower")).tolist()
    return cuts


def _filled(correct: Floats) -> Floats:
    """Return the labels, an arm's mean where it was not asked."""
    return np.where(np.isnan(correct), np.nanmean(correct, axis=0), correct)
