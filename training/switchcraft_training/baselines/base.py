"""Protocol of baselines, and their evaluation on held-out queries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from router_service.measurement.rules import Choices, route
from switchcraft_training.data.splits import Split
from switchcraft_training.data.table import Floats, Table
from switchcraft_training.records import Example

PAPER_RULE = "theta=0.5"
"""The paper's policy: the cheapest arm that is predicted to be correct, or the most probable arm if
there is none (section 3.3)."""


class FittedBaseline(Protocol):
    """A baseline that was fitted on training queries."""

    def probabilities(self, examples: Sequence[Example]) -> Floats | None:
        """Return each arm's probability of a correct answer, (queries, arms).

        Return None if the baseline chooses without probabilities.
        """
        ...

    def choices(self, table: Table, rule: str = PAPER_RULE) -> Choices:
        """Return the index of the chosen arm for each query, (queries,).

        `rule` is a policy, which only baselines with probabilities use. Only the oracle may read
        the table's labels and costs.
        """
        ...


class Baseline(Protocol):
    """A way of routing that the trained router is compared with."""

    @property
    def name(self) -> str:
        """Name in reports."""
        ...

    def fit(self, train: Table, validation: Table) -> FittedBaseline:
        """Fit on training queries; validation queries select epochs or hyperparameters.

        Raises ValueError if an arm has no training label.
        """
        ...


@dataclass(frozen=True, slots=True)
class Predictor:
    """A fitted baseline that chooses by predicted probabilities and profiled costs, (arms,)."""

    predict: Callable[[Sequence[Example]], Floats]
    costs_usd: tuple[float, ...]

    def probabilities(self, examples: Sequence[Example]) -> Floats | None:
        """Return each arm's probability of a correct answer, (queries, arms)."""
        return self.predict(examples)

    def choices(self, table: Table, rule: str = PAPER_RULE) -> Choices:
        """Return the arm that the policy chooses for each query."""
        return route(self.predict(table.examples), self.costs_usd, rule)


@dataclass(frozen=True, slots=True)
class Chooser:
    """A fitted baseline that chooses without probabilities."""

    choose: Callable[[Table], Choices]

    def probabilities(self, examples: Sequence[Example]) -> Floats | None:  # noqa: ARG002 - part of the protocol
        """Return None."""
        return None

    def choices(self, table: Table, rule: str = PAPER_RULE) -> Choices:  # noqa: ARG002 - part of the protocol
        """Return the arm chosen for each query."""
        return self.choose(table)


@dataclass(frozen=True, slots=True)
class HeldOutResult:
    """A baseline's results on held-out queries.

    `rows` are the queries' indices in the table. `probabilities` is (rows, arms), or None if the
    baseline has none. `choices` maps each policy to the index of the chosen arm for each row.
    """

    rows: tuple[int, ...]
    probabilities: Floats | None
    choices: Mapping[str, Choices]


def held_out(
    baseline: Baseline, table: Table, splits: Sequence[Split], rules: Sequence[str] = (PAPER_RULE,)
) -> HeldOutResult:
    """Fit a baseline on each split's training part and apply it to the test part.

    With the splits of `fold_table`, the result contains every query once.
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
    return HeldOutResult(
        rows=tuple(row for split in splits for row in split.test),
        probabilities=np.concatenate(probabilities) if probabilities else None,
        choices={rule: np.concatenate(parts) for rule, parts in choices.items()},
    )


def profiled_costs_usd(train: Table) -> tuple[float, ...]:
    """Return the mean cost of each arm's answers, over the queries that it was asked.

    Raises ValueError if an arm has no training label.
    """
    asked = ~np.isnan(train.correct)
    unasked = [arm for arm, known in zip(train.arms, asked.T, strict=True) if not known.any()]
    if unasked:
        raise ValueError(
            f"no training query has a label of {', '.join(unasked)}; label some or remove the arm"
        )
    return tuple(np.nanmean(np.where(asked, train.cost_usd, np.nan), axis=0).tolist())
