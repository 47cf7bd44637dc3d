"""Protocol of baselines, and their evaluation on held-out queries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeAlias

import numpy as np

from router_service.measurement.rules import Choices, Kind, route
from switchcraft_training.data.splits import Split
from switchcraft_training.data.table import Floats, Table
from switchcraft_training.evaluation.evaluate import Entrant
from switchcraft_training.records import Example

PAPER_RULE = "theta=0.5"
"""The paper's policy: the cheapest arm that is predicted to be correct, or the most probable arm if
there is none (section 3.3)."""


@dataclass(frozen=True, slots=True)
class Predictor:
    """A fitted baseline that predicts each arm's probability of a correct answer.

    `predict` returns them for queries, (queries, arms). A policy chooses by them and by the
    profiled costs, (arms,).
    """

    predict: Callable[[Sequence[Example]], Floats]
    costs_usd: tuple[float, ...]


Chooser: TypeAlias = Callable[[Sequence[Example]], Choices]
"""A fitted baseline that chooses an arm for each query without probabilities, (queries,)."""


class Baseline(Protocol):
    """A way of routing that the trained router is compared with."""

    kind: ClassVar[Kind]
    """Kind of the row in reports."""

    @property
    def name(self) -> str:
        """Name in reports."""
        ...

    def fit(self, train: Table, validation: Table) -> Predictor | Chooser:
        """Fit on training queries; validation queries select epochs or hyperparameters.

        Raises ValueError if an arm has no training label.
        """
        ...


def held_out(
    baseline: Baseline, table: Table, splits: Sequence[Split], rule: str = PAPER_RULE
) -> Entrant:
    """Fit a baseline on each split's training part, and apply it to the test part.

    `rule` is the policy that chooses by probabilities. The choices are in the order of the splits'
    test rows.
    """
    probabilities: list[Floats] = []
    choices: list[Choices] = []
    for split in splits:
        train, validation, test = map(table.take, split.parts())
        fitted = baseline.fit(train, validation)
        if isinstance(fitted, Predictor):
            probabilities.append(fitted.predict(test.examples))
            choices.append(route(probabilities[-1], fitted.costs_usd, rule))
        else:
            choices.append(fitted(test.examples))
    return Entrant(
        baseline.kind,
        baseline.name,
        np.concatenate(choices),
        np.concatenate(probabilities) if probabilities else None,
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
