"""What an evaluation is given: queries, what arms did with them, and what routers said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from router_service.core.cost import Price
from switchcraft_training.evaluation.calibrating import CalibrationStudy
from switchcraft_training.evaluation.evaluate import (
    Choices,
    Costs,
    Entrant,
    Floats,
    Outcomes,
    route,
)
from switchcraft_training.evaluation.table import Table
from switchcraft_training.profiling.usage import Usage


@dataclass(frozen=True, slots=True)
class Run:
    """A router on its own test queries: another seed, or a fold."""

    name: str
    outcomes: Outcomes
    probabilities: Floats
    expected_costs_usd: Costs


@dataclass(frozen=True, slots=True)
class Experiment:
    """A router's probabilities for queries it has not seen, (queries, arms), and all beside it.

    `expected_costs_usd` is what it decides by. `entrants` are compared in the main table; one that
    is named like a built-in row (an arm, `random`, `dataset oracle`, `oracle`) stands in for it.
    `usage` is what the answers used, at `prices` by arm. `folds`, (queries,), says which fold
    tested each query. `variants` are the router with other input. `runs` are the same pipeline
    with other seeds. `calibrating` says how the probabilities' calibration was chosen. What is
    empty leaves its section out. Raises ValueError where an arm was not asked every query.
    """

    table: Table
    probabilities: Floats
    expected_costs_usd: Costs
    policies: Mapping[str, str]
    entrants: tuple[Entrant, ...] = ()
    usage: Usage | None = None
    prices: Mapping[str, Price] = field(default_factory=dict)
    folds: Choices | None = None
    variants: tuple[Entrant, ...] = ()
    runs: tuple[Run, ...] = ()
    calibrating: CalibrationStudy | None = None

    def __post_init__(self) -> None:
        unasked = int(np.isnan(self.table.correct).any(axis=1).sum())
        if unasked:
            raise ValueError(f"{unasked} queries have an arm that was not asked; leave them out")

    @property
    def outcomes(self) -> Outcomes:
        """What every arm did."""
        return Outcomes(self.table.arms, self.table.correct, self.table.cost_usd)

    @property
    def rule(self) -> str:
        """The default policy's rule."""
        return self.policies["default"]

    def chosen(self) -> Choices:
        """Return the arms that the default policy picks, (queries,)."""
        return route(self.probabilities, self.expected_costs_usd, self.rule)

    def categories(self) -> tuple[str, ...]:
        """Return each query's category, with its data set where there are several."""
        examples = self.table.examples
        several = len({example.dataset for example in examples}) > 1
        return tuple(f"{e.dataset}/{e.category}" if several else e.category for e in examples)
