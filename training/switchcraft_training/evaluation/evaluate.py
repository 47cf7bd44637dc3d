"""Comparison of a router with the single models and the oracle, on unseen queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from router_service.core.artifact import FrontierPoint, Interval, Measure, VersusBest
from router_service.core.selection import Price, choose_once, parse_policy, select_rows
from switchcraft_training.data.table import Choices, Flags, Floats, Table
from switchcraft_training.evaluation.calibration import CalibrationStudy
from switchcraft_training.evaluation.metrics import (
    Estimate,
    auc_measure,
    expected_calibration_error,
    interval_of,
    mean_and_draws,
    mean_measure,
    ratio,
)

Costs = Sequence[float] | Floats
"""The router's expected costs of the arms in USD: (arms,), or (queries, arms)."""
Kind = Literal["single", "heuristic", "baseline", "router", "random", "oracle"]
KINDS: tuple[Kind, ...] = ("single", "heuristic", "baseline", "router", "random", "oracle")
"""All kinds of entrants, in the order of their rows in the main table."""

THETAS = (
    *(0.3, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.725, 0.75, 0.775, 0.8, 0.82, 0.84, 0.86, 0.88),
    *(0.9, 0.91, 0.92, 0.93, 0.94, 0.95, 0.96, 0.97, 0.98),
)
DRIFTS = (
    *(0.3, 0.26, 0.23, 0.2, 0.18, 0.16, 0.14, 0.12, 0.1, 0.09, 0.08, 0.07, 0.06, 0.05, 0.04),
    *(0.03, 0.025, 0.02, 0.015, 0.01, 0.0075, 0.005, 0.003, 0.002, 0.001),
)
SLOPES = tuple(np.geomspace(5.0, 0.001, 25).tolist())
"""Probability that must make up for the difference in cost between the least and the most expensive
arm. The price of `utility` is this difference divided by the probability."""
FRONTIER = (*(f"theta={theta:g}" for theta in THETAS), *(f"drift={delta:g}" for delta in DRIFTS))
"""The rules that a sweep measures for every pool, in smaller steps where a small step changes many
choices."""
PRICE_DIGITS = 3
"""Significant digits of a price: it is part of a policy's name."""


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
class Entry:
    """Row of the main table; differences are from the best single model, paired by query.

    `gap_from_cheapest` is the share of the accuracy gap between the cheapest single model and the
    oracle that the row closes (paper, section 4.3). `gap_from_best` is the same share for the gap
    between the best single model and the oracle. A share is None if its gap is zero.
    """

    kind: Kind
    name: str
    accuracy: Measure
    accuracy_interval: Interval
    cost_usd: Measure
    cost_usd_interval: Interval
    cost_share: float
    cost_share_interval: Interval | None
    difference: float
    difference_interval: Interval
    gap_from_cheapest: Estimate | None
    gap_from_best: Estimate | None

    @property
    def point(self) -> FrontierPoint:
        """The entry in the form that an artifact stores."""
        return FrontierPoint(
            policy=self.name,
            accuracy=self.accuracy,
            cost_usd=self.cost_usd,
            accuracy_interval=self.accuracy_interval,
            cost_usd_interval=self.cost_usd_interval,
            versus_best=VersusBest(
                difference=self.difference,
                difference_interval=self.difference_interval,
                cost_share=None if np.isnan(self.cost_share) else self.cost_share,
                cost_share_interval=self.cost_share_interval,
            ),
        )


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The main table, the sweep and other metrics of a router on one set of queries.

    `sweep` holds an entry for each rule of `frontier_rules`, and `arm_share` the share of queries
    that the default policy routes to each arm.
    """

    best_single: str
    default_policy: str
    entries: tuple[Entry, ...]
    sweep: tuple[Entry, ...]
    auc: Measure
    calibration_error: float
    arm_share: Mapping[str, float]

    @property
    def frontier(self) -> tuple[FrontierPoint, ...]:
        """The sweep in the form that an artifact stores."""
        return tuple(entry.point for entry in self.sweep)

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
    """Measure a router under every policy, together with other entrants.

    `probabilities`, (queries, arms), are the router's. As in the gateway, the router chooses by
    expected costs; the results use the recorded costs.
    """
    chosen = route(probabilities, expected_costs_usd, policies["default"])
    shares = np.bincount(chosen, minlength=len(table.arms)) / len(chosen)
    routers = [
        Entrant("router", name, route(probabilities, expected_costs_usd, rule))
        for rule, name in policy_names(policies).items()
    ]
    return Evaluation(
        best_single=table.arms[best_single(table)],
        default_policy=policy_names(policies)[policies["default"]],
        entries=main_table(table, [*routers, *entrants]),
        sweep=sweep(table, probabilities, expected_costs_usd),
        auc=auc_measure(table.correct, probabilities),
        calibration_error=expected_calibration_error(table.correct, probabilities),
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
class Bench:
    """Results of the single models and the oracle that entries are compared with, (queries,) each.

    Fields without `cost_usd` are correctness.
    """

    best: Floats
    best_cost_usd: Floats
    cheapest: Floats
    oracle: Floats

    @classmethod
    def of(cls, table: Table) -> Bench:
        """Return the results of a table's best and cheapest single models, and of its oracle."""
        best = best_single(table)
        return cls(
            best=table.correct[:, best],
            best_cost_usd=table.cost_usd[:, best],
            cheapest=table.correct[:, cheapest_single(table)],
            oracle=table.pick(oracle(table))[0],
        )

    def measure(self, kind: Kind, name: str, correct: Floats, cost_usd: Floats) -> Entry:
        """Measure an entry from its correctness and cost, (queries,) each."""
        n = len(correct)
        over_best, over_cheapest = correct - self.best, correct - self.cheapest
        # All means use one pass over the draws, because a sweep has 50 rules with 2,000 draws each.
        got, paid, their_paid, ahead, gained, way, way_from_best = mean_and_draws(
            *(correct, cost_usd, self.best_cost_usd, over_best, over_cheapest),
            *(self.oracle - self.cheapest, self.oracle - self.best),
        )
        share = ratio(paid, their_paid, n)
        return Entry(
            kind=kind,
            name=name,
            accuracy=mean_measure(correct),
            accuracy_interval=interval_of(got[1:]),
            cost_usd=mean_measure(cost_usd),
            cost_usd_interval=interval_of(paid[1:]),
            cost_share=share.value if share else float("nan"),
            cost_share_interval=share.interval if share else None,
            difference=float(ahead[0]),
            difference_interval=interval_of(ahead[1:]),
            gap_from_cheapest=ratio(gained, way, n),
            gap_from_best=ratio(ahead, way_from_best, n),
        )


def frontier_rules(expected_costs_usd: Costs) -> tuple[str, ...]:
    """Return the rules that a sweep measures: thresholds, drifts, and prices that fit the costs."""
    costs = np.asarray(expected_costs_usd, dtype=np.float64)
    spread_usd = float(np.ptp(costs.mean(0) if costs.ndim > 1 else costs))
    if spread_usd == 0:
        return FRONTIER
    prices = dict.fromkeys(f"{spread_usd / slope:.{PRICE_DIGITS}g}" for slope in SLOPES)
    return (*FRONTIER, *(f"utility={float(price):g}" for price in prices))


def sweep(table: Table, probabilities: Floats, expected_costs_usd: Costs) -> tuple[Entry, ...]:
    """Return an entry for each rule of the frontier."""
    bench = Bench.of(table)
    return tuple(
        bench.measure("router", rule, *table.pick(route(probabilities, expected_costs_usd, rule)))
        for rule in frontier_rules(expected_costs_usd)
    )


def best_single(table: Table) -> int:
    """Return the most accurate arm; the cheapest one if several are equally accurate."""
    accuracy, cost = table.correct.mean(0), table.cost_usd.mean(0)
    return min(range(len(table.arms)), key=lambda arm: (-accuracy[arm], cost[arm]))


def cheapest_single(table: Table) -> int:
    """Return the cheapest arm; the most accurate one if several cost the same."""
    accuracy, cost = table.correct.mean(0), table.cost_usd.mean(0)
    return min(range(len(table.arms)), key=lambda arm: (cost[arm], -accuracy[arm]))


def route(probabilities: Floats, costs_usd: Costs, rule: str) -> Choices:
    """Return the arm that a policy picks for each query, (queries,)."""
    policy = choose_once(parse_policy(rule))
    costs = np.broadcast_to(np.asarray(costs_usd, dtype=np.float64), probabilities.shape)
    return select_rows(probabilities, costs, policy)


def oracle(table: Table) -> Choices:
    """Return each query's cheapest correct arm, or the most expensive arm if no arm is correct.

    This is the oracle of the paper's section 3.3. If labels are fractional, return the cheapest of
    the arms with the highest label.
    """
    top = table.correct.max(axis=1, keepdims=True)
    cheapest = np.where(table.correct == top, table.cost_usd, np.inf).argmin(1)
    picked: Choices = np.where(top[:, 0] > 0, cheapest, table.cost_usd.argmax(1))
    return picked


@dataclass(frozen=True, slots=True)
class Run:
    """Predictions of one trained router for its test queries, for example of one seed or fold."""

    name: str
    table: Table
    probabilities: Floats
    expected_costs_usd: Costs


@dataclass(frozen=True, slots=True)
class Experiment:
    """Held-out predictions of a router, and everything that a report compares them with.

    The router decides by `probabilities`, (queries, arms), and `expected_costs_usd`. `entrants` are
    rows of the main table; an entrant with the name of a built-in row (an arm, `random`, `dataset
    oracle`, `oracle`) replaces that row. `variants` are the router with another input or with other
    branches (the predictors that it mixes). `runs` are routers of the same pipeline with other
    seeds. `calibrating` explains the choice of the calibration. If one of these is empty, the
    report omits its section. Raises ValueError unless every arm was asked every query.
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
            raise ValueError(f"{unasked} queries have an arm that was not asked; drop the queries")

    @property
    def rule(self) -> str:
        """The rule of the default policy."""
        return self.policies["default"]

    def chosen(self) -> Choices:
        """Return the arms that the default policy picks, (queries,)."""
        return route(self.probabilities, self.expected_costs_usd, self.rule)

    def categories(self) -> tuple[str, ...]:
        """Return each query's category, as `dataset/category` if there are several datasets."""
        examples = self.table.examples
        several = len({example.dataset for example in examples}) > 1
        return tuple(f"{e.dataset}/{e.category}" if several else e.category for e in examples)
