"""What a baseline is, and what it says of queries that it was not fitted on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from switchcraft_training.evaluation.evaluate import Choices, route
from switchcraft_training.evaluation.table import Floats, Table
from switchcraft_training.preferences.splits import Split
from switchcraft_training.records import Example

PAPER_RULE = "theta=0.5"
"""The cheapest arm predicted correct, the most probable where none is (section 3.3)."""


class Fitted(Protocol):
    """A baseline after it has seen its training queries."""

    def probabilities(self, examples: Sequence[Example]) -> Floats | None:
        """Return how probably each arm answers correctly, (queries, arms).

        None for a baseline that only chooses.
        """
        ...

    def choices(self, table: Table, rule: str = PAPER_RULE) -> Choices:
        """Return an arm's index for each query, (queries,).

        `rule` is a policy; a baseline that only chooses has no use for it. Labels and costs of
        the table are for the oracle alone.
        """
        ...


class Baseline(Protocol):
    """A way of routing, by the name it has in tables."""

    @property
    def name(self) -> str:
        """What the baseline is called."""
        ...

    def fit(self, train: Table, validation: Table) -> Fitted:
        """Learn from training queries; validation queries decide when to stop, or how many.

        Raises ValueError where an arm has no training label.
        """
        ...


@dataclass(frozen=True, slots=True)
class Predictor:
    """Chooses by predicted probabilities and profiled costs, (arms,)."""

    predict: Callable[[Sequence[Example]], Floats]
    costs_usd: tuple[float, ...]

    def probabilities(self, examples: Sequence[Example]) -> Floats | None:
        """Return how probably each arm answers correctly, (queries, arms)."""
        return self.predict(examples)

    def choices(self, table: Table, rule: str = PAPER_RULE) -> Choices:
        """Return the arm that the policy picks for each query."""
        return route(self.predict(table.examples), self.costs_usd, rule)


@dataclass(frozen=True, slots=True)
class Chooser:
    """Chooses without a probability."""

    choose: Callable[[Table], Choices]

    def probabilities(self, examples: Sequence[Example]) -> Floats | None:  # noqa: ARG002 - none
        """Return None."""
        return None

    def choices(self, table: Table, rule: str = PAPER_RULE) -> Choices:  # noqa: ARG002 - no use
        """Return the arm chosen for each query."""
        return self.choose(table)


@dataclass(frozen=True, slots=True)
class HeldOut:
    """What a baseline said of queries that it was not fitted on.

    `rows` are their places in the table; `probabilities` is (rows, arms), None where the baseline
    only chooses; `choices` has an arm for each row, by policy.
    """

    rows: tuple[int, ...]
    probabilities: Floats | None
    choices: Mapping[str, Choices]


def held_out(
    baseline: Baseline, table: Table, splits: Sequence[Split], rules: Sequence[str] = (PAPER_RULE,)
) -> HeldOut:
    """Fit a baseline on each split's training part and ask it about the test part.

    One split gives its test queries, `grouped_folds` give every query once.
    """
    probabilities: list[Floats] = []
    choices: dict[str, list[Choices]] = {rule: [] for rule in rules}
    for split in splits:
        train, validation, test = map(table.take, split.parts())
        fitted = baseline.fit(train, validation)
        predicted = fitted.probabilities(test.examples)
        if predicted is not None:
            probabilities.append(predicted)
        for rule in rules:
            choices[rule].append(fitted.choices(test, rule))
    return HeldOut(
        rows=tuple(row for split in splits for row in split.test),
        probabilities=np.concatenate(probabilities) if probabilities else None,
        choices={rule: np.concatenate(parts) for rule, parts in choices.items()},
    )


def profiled_costs_usd(train: Table) -> tuple[float, ...]:
    """Return what an answer of each arm cost on average, over the queries that it was asked.

    Raises ValueError where an arm has no training label.
    """
    asked = ~np.isnan(train.correct)
    unasked = [arm for arm, known in zip(train.arms, asked.T, strict=True) if not known.any()]
    if unasked:
        raise ValueError(f"no training label of {', '.join(unasked)}")
    return tuple(np.nanmean(np.where(asked, train.cost_usd, np.nan), axis=0).tolist())
