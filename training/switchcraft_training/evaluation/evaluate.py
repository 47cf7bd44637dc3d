"""Comparison of a router with the single models, the oracle and its variants, on unseen queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from router_service.artifact import Measure
from router_service.measurement.held_out import Figures
from router_service.measurement.rules import (
    KINDS,
    Bench,
    Choices,
    Costs,
    Entry,
    Kind,
    best_single,
    oracle,
    route,
    sweep,
)
from router_service.measurement.statistics import auc_measure, mean_measure
from router_service.policies.registry import choosing_name
from router_service.policies.verified import is_verified
from switchcraft_training.data.table import Flags, Floats, Table
from switchcraft_training.evaluation.calibration import CalibrationStudy
from switchcraft_training.evaluation.metrics import (
    calibration_measure,
    paired_interval,
    ratio_interval,
)

SHIPPED = "as it ships"
"""Name of the router without changes, in the report's table of variants."""


@dataclass(frozen=True, slots=True)
class Entrant:
    """A routing method in the comparison, with the arm that it chooses for each query, (queries,).

    `probabilities`, (queries, arms), are its predictions, or None if it predicts none.
    """

    kind: Kind
    name: str
    choices: Choices
    probabilities: Floats | None = None

    def take(self, rows: Choices | Flags) -> Entrant:
        """Return the entrant for the queries at these indices, or those that a mask selects."""
        probabilities = None if self.probabilities is None else self.probabilities[rows]
        return replace(self, choices=self.choices[rows], probabilities=probabilities)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The main table, the sweep and other metrics of a router on one set of queries.

    `sweep` holds an entry for each rule of `frontier_rules`, and `arm_share` the share of queries
    that the default policy routes to each arm. If the default verifies answers, its place is taken
    by the policy for requests that are not verified.
    """

    best_single: str
    default_policy: str
    entries: tuple[Entry, ...]
    sweep: tuple[Entry, ...]
    auc: Measure
    calibration_error: float
    arm_share: Mapping[str, float]

    def entry(self, name: str) -> Entry:
        """Return the entry with that name; raises KeyError for an unknown name."""
        return {entry.name: entry for entry in self.entries}[name]


def evaluate(
    table: Table,
    probabilities: Floats,
    expected_costs_usd: Costs,
    policies: Mapping[str, str],
    entrants: Sequence[Entrant] = (),
) -> Evaluation:
    """Measure a router under every policy that chooses once, together with other entrants.

    `probabilities`, (queries, arms), are the router's. As in the gateway, the router chooses by
    expected costs; the results use the recorded costs.
    """
    rule = policies[choosing_name(policies)]
    chosen = route(probabilities, expected_costs_usd, rule)
    shares = np.bincount(chosen, minlength=len(table.arms)) / len(chosen)
    routers = [
        Entrant("router", name, route(probabilities, expected_costs_usd, each))
        for each, name in policy_names(policies).items()
        if not is_verified(each)
    ]
    return Evaluation(
        best_single=table.arms[best_single(table)],
        default_policy=policy_names(policies)[rule],
        entries=main_table(table, [*routers, *entrants]),
        sweep=sweep(table, probabilities, expected_costs_usd),
        auc=auc_measure(table.correct, probabilities),
        calibration_error=calibration_measure(table.correct, probabilities).value,
        arm_share=dict(zip(table.arms, shares.tolist(), strict=True)),
    )


def main_table(table: Table, entrants: Sequence[Entrant]) -> tuple[Entry, ...]:
    """Return the rows of the entrants, the single models, random choice and the oracle.

    An entrant replaces a built-in row of the same name. Rows are sorted by kind, then by falling
    accuracy.
    """
    bench = Bench.of(table)
    queries = len(table.correct)
    # Summed arm by arm (column order): another order changes the last digit of the interval.
    random_usd = np.asfortranarray(table.cost_usd).mean(1)
    known = [
        *(Entrant("single", arm, np.full(queries, i)) for i, arm in enumerate(table.arms)),
        Entrant("oracle", "oracle", oracle(table)),
        *entrants,
    ]
    entries = [
        # The expected value of random choice, instead of the result of one draw.
        bench.measure("random", "random", table.correct.mean(1), random_usd),
        *(bench.measure(e.kind, e.name, *table.pick(e.choices)) for e in known),
    ]
    by_name = {entry.name: entry for entry in entries}
    return tuple(sorted(by_name.values(), key=lambda e: (KINDS.index(e.kind), -e.accuracy.value)))


def policy_names(policies: Mapping[str, str]) -> dict[str, str]:
    """Return each rule's display name: the names of the policies with this rule, and the rule."""
    names: dict[str, list[str]] = {}
    for name, rule in policies.items():
        names.setdefault(rule, []).append(name)
    return {rule: f"{', '.join(called)} ({rule})" for rule, called in names.items()}


@dataclass(frozen=True, slots=True)
class Experiment:
    """Held-out predictions of a router, and everything that a report compares them with.

    The router decides by `probabilities`, (queries, arms), and `expected_costs_usd`. `entrants` are
    rows of the main table; an entrant with the name of a built-in row (an arm, `random`, `dataset
    oracle`, `oracle`) replaces that row. `variants` are the router with another input or with other
    branches (the predictors that it mixes). `calibrating` explains the choice of the calibration.
    If one of these is empty, the report omits its section. Raises ValueError unless every arm was
    asked every query.
    """

    table: Table
    probabilities: Floats
    expected_costs_usd: Costs
    policies: Mapping[str, str]
    entrants: tuple[Entrant, ...] = ()
    variants: tuple[Entrant, ...] = ()
    calibrating: CalibrationStudy | None = None

    def __post_init__(self) -> None:
        unasked = int(np.isnan(self.table.correct).any(axis=1).sum())
        if unasked:
            raise ValueError(f"{unasked} queries have an arm that was not asked; drop the queries")

    @property
    def rule(self) -> str:
        """The rule of the policy for requests whose answers are not verified."""
        return self.policies[choosing_name(self.policies)]

    def figures(self) -> Figures:
        """Return what the manifest says about the router."""
        return Figures.measure(
            self.table, self.probabilities, self.expected_costs_usd, self.policies
        )

    def chosen(self) -> Choices:
        """Return the arms that `rule` picks, (queries,)."""
        return route(self.probabilities, self.expected_costs_usd, self.rule)

    def categories(self) -> tuple[str, ...]:
        """Return each query's category, as `dataset/category` if there are several datasets."""
        examples = self.table.examples
        several = len({example.dataset for example in examples}) > 1
        return tuple(f"{e.dataset}/{e.category}" if several else e.category for e in examples)


@dataclass(frozen=True, slots=True)
class Variant:
    """Results of a variant of the router's input or branches, compared with the shipped router."""

    name: str
    accuracy: Measure
    cost_usd: Measure
    auc: Measure | None
    difference: float
    difference_interval: tuple[float, float]
    cost_ratio: float
    cost_ratio_interval: tuple[float, float] | None


def compare_variants(experiment: Experiment) -> tuple[Variant, ...]:
    """Return the results of the shipped router, then of each variant; empty without variants."""
    if not experiment.variants:
        return ()
    table = experiment.table
    shipped = Entrant("router", SHIPPED, experiment.chosen(), experiment.probabilities)
    shipped_correct, shipped_paid = table.pick(shipped.choices)
    rows = []
    for variant in (shipped, *experiment.variants):
        correct, paid = table.pick(variant.choices)
        predicted = variant.probabilities
        row = Variant(
            name=variant.name,
            accuracy=mean_measure(correct),
            cost_usd=mean_measure(paid),
            auc=None if predicted is None else auc_measure(table.correct, predicted),
            difference=float((correct - shipped_correct).mean()),
            difference_interval=paired_interval(correct, shipped_correct),
            cost_ratio=float(paid.mean() / shipped_paid.mean()),
            cost_ratio_interval=ratio_interval(paid, shipped_paid),
        )
        rows.append(row)
    return tuple(rows)
