"""Baselines that read no query: one arm, a random one, the best of a category, the oracle."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from switchcraft_training.baselines.base import Chooser, profiled_costs_usd
from switchcraft_training.evaluation.evaluate import Choices
from switchcraft_training.evaluation.table import Floats, Table
from switchcraft_training.records import Example


@dataclass(frozen=True, slots=True)
class Single:
    """One arm for every query."""

    arm: str

    @property
    def name(self) -> str:
        """The arm's name."""
        return self.arm

    def fit(self, train: Table, validation: Table) -> Chooser:  # noqa: ARG002 - the protocol's
        """Look up the arm; raises ValueError where the table has none of that name."""
        index = train.arms.index(self.arm)
        return Chooser(lambda table: np.full(len(table.examples), index))


@dataclass(frozen=True, slots=True)
class Random:
    """Any arm, each as probably as the others."""

    seed: int
    name: str = "random"

    def fit(self, train: Table, validation: Table) -> Chooser:  # noqa: ARG002 - the protocol's
        """Learn nothing; the same queries always get the same arms."""
        return Chooser(
            lambda table: np.random.default_rng(self.seed).integers(
                len(table.arms), size=len(table.examples)
            )
        )


@dataclass(frozen=True, slots=True)
class DatasetOracle:
    """Knows each query's dataset and category, and takes the arm that did best there in training.

    Of equal arms it takes the one that costs less; in an unseen category, the best arm overall.
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
    """Knows every answer: the cheapest correct arm, the dearest where none is (section 3.3).

    Where labels are probabilities, the cheapest of the most probable arms. Arms that were not
    asked are not taken.
    """

    name: str = "oracle"

    def fit(self, train: Table, validation: Table) -> Chooser:  # noqa: ARG002 - the protocol's
        """Learn nothing: the answers are in the table that it chooses for."""
        return Chooser(_omniscient)


def best_arm(correct: Floats, costs_usd: tuple[float, ...]) -> int:
    """Return the arm most often correct, (queries, arms); of equal ones the cheapest.

    An arm that was asked none of them is not taken.
    """
    asked = (~np.isnan(correct)).sum(0)
    accuracy = np.where(asked > 0, np.nansum(correct, axis=0) / np.maximum(asked, 1), -1.0)
    return min(range(len(costs_usd)), key=lambda arm: (-accuracy[arm], costs_usd[arm]))


def _omniscient(table: Table) -> Choices:
    asked = ~np.isnan(table.correct)
    correct = np.where(asked, table.correct, -1.0)
    best = correct.max(axis=1, keepdims=True)
    cheapest = np.where(asked & (correct == best), table.cost_usd, np.inf).argmin(1)
    dearest = np.where(asked, table.cost_usd, -np.inf).argmax(1)
    picked: Choices = np.where(best[:, 0] > 0, cheapest, dearest)
    return picked


def _category(example: Example) -> tuple[str, str]:
    return example.dataset, example.category
