"""Input of an evaluation: queries, recorded outcomes, and the predictions of routers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from router_service.core.selection import Price
from switchcraft_training.data.table import Choices, Floats, Table
from switchcraft_training.evaluation.calibrating import CalibrationStudy
from switchcraft_training.evaluation.evaluate import (
    Costs,
    Entrant,
    route,
)


@dataclass(frozen=True, slots=True)
class Run:
    """A router on its own test queries, for example with another seed or in one fold."""

    name: str
    table: Table
    probabilities: Floats
    expected_costs_usd: Costs


@dataclass(frozen=True, slots=True)
class Experiment:
    """Held-out predictions of a router, with everything that they are compared with.

    The router decides by `probabilities`, (queries, arms), and `expected_costs_usd`. `entrants` are
    compared in the main table; one with the name of a built-in row (an arm, `random`, `dataset
    oracle`, `oracle`) replaces that row. `variants` are the router with other input or other
    branches, and `runs` are the same pipeline with other seeds. `calibrating` explains the choice
    of the calibration. If an input is empty, the report omits its section. Raises ValueError if an
    arm was not asked every query.
    """

    table: Table
    probabilities: Floats
    expected_costs_usd: Costs
    policies: Mapping[str, str]
    entrants: tuple[Entrant, ...] = ()
    prices: Mapping[str, Price] = field(default_factory=dict)
    variants: tuple[Entrant, ...] = ()
    runs: tuple[Run, ...] = ()
    calibrating: CalibrationStudy | None = None

    def __post_init__(self) -> None:
        unasked = int(np.isnan(self.table.correct).any(axis=1).sum())
        if unasked:
            raise ValueError(f"{unasked} queries have an arm that was not asked; leave them out")

    @property
    def rule(self) -> str:
        """The rule of the default policy."""
        return self.policies["default"]

    def chosen(self) -> Choices:
        """Return the arms that the default policy picks, (queries,)."""
        return route(self.probabilities, self.expected_costs_usd, self.rule)

    def categories(self) -> tuple[str, ...]:
        """Return each query's category, with its dataset if there are several."""
        examples = self.table.examples
        several = len({example.dataset for example in examples}) > 1
        return tuple(f"{e.dataset}/{e.category}" if several else e.category for e in examples)
