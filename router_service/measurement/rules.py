"""Measured rules: the accuracy and cost of policies on queries that all arms have answered.

Training and the gateway both use it: training for all arms of a pool, the gateway for those that
its configuration maps, at the configured prices.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from router_service.artifact import FrontierPoint, Interval, Measure, VersusBest
from router_service.measurement.statistics import (
    Estimate,
    interval_of,
    mean_and_draws,
    mean_measure,
    ratio,
)
from router_service.policies.base import PRICE_DIGITS
from router_service.policies.registry import choose_once, choosing_policies, parse_policy
from router_service.predictor.model import Floats

Choices = NDArray[np.int64]
"""The column of the chosen arm for each query, (queries,)."""
Costs = Sequence[float] | Floats
"""The router's expected costs of the arms in USD: (arms,), or (queries, arms)."""
Kind = Literal["single", "baseline", "router", "random", "oracle"]
KINDS: tuple[Kind, ...] = ("single", "baseline", "router", "random", "oracle")
"""All kinds of entrants, in the order of their rows in the main table."""


class Outcomes(Protocol):
    """Recorded results of every arm for every query."""

    @property
    def correct(self) -> Floats:
        """Probability of a correct answer, (queries, arms); 0 or 1 if a query was asked once."""

    @property
    def cost_usd(self) -> Floats:
        """Cost of each answer, (queries, arms)."""


def prices_in_usd(prices: Iterable[float], unit_usd: float) -> tuple[float, ...]:
    """Return prices in USD, rounded as in a policy's name."""
    return tuple(float(f"{price * unit_usd:.{PRICE_DIGITS}g}") for price in prices)


def pick(outcomes: Outcomes, choices: Choices) -> tuple[Floats, Floats]:
    """Return the correctness and the cost in USD of each query's chosen arm, (queries,) each."""
    rows = np.arange(len(choices))
    return outcomes.correct[rows, choices], outcomes.cost_usd[rows, choices]


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
class Bench:
    """Results of the single models and the oracle that entries are compared with, (queries,) each.

    Fields without `cost_usd` are correctness.
    """

    best: Floats
    best_cost_usd: Floats
    cheapest: Floats
    oracle: Floats

    @classmethod
    def of(cls, outcomes: Outcomes) -> Bench:
        """Return the results of the best and the cheapest single model, and of the oracle."""
        best = best_single(outcomes)
        return cls(
            best=outcomes.correct[:, best],
            best_cost_usd=outcomes.cost_usd[:, best],
            cheapest=outcomes.correct[:, cheapest_single(outcomes)],
            oracle=pick(outcomes, oracle(outcomes))[0],
        )

    def measure(self, kind: Kind, name: str, correct: Floats, cost_usd: Floats) -> Entry:
        """Measure an entry from its correctness and cost, (queries,) each."""
        return self.measure_all(kind, [(name, correct, cost_usd)])[0]

    def measure_all(
        self, kind: Kind, results: Sequence[tuple[str, Floats, Floats]]
    ) -> tuple[Entry, ...]:
        """Measure entries from their names, correctness and costs, (queries,) each.

        One product of matrices gives the means of all entries in all 2,000 draws: 75 rules for
        1,384 queries take 0.2 s, and 1.2 s one after the other.
        """
        columns = [column for _, correct, cost_usd in results for column in (correct, cost_usd)]
        best, best_usd, cheapest, top, *rest = mean_and_draws(
            self.best, self.best_cost_usd, self.cheapest, self.oracle, *columns
        )
        entries = []
        for number, (name, correct, cost_usd) in enumerate(results):
            got, paid = rest[2 * number : 2 * number + 2]
            n, ahead = len(correct), got - best
            share = ratio(paid, best_usd, n)
            entry = Entry(
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
                gap_from_cheapest=ratio(got - cheapest, top - cheapest, n),
                gap_from_best=ratio(ahead, top - best, n),
            )
            entries.append(entry)
        return tuple(entries)


def frontier_rules(expected_costs_usd: Costs) -> tuple[str, ...]:
    """Return the rules that a sweep measures: those of every policy that chooses once."""
    costs = np.asarray(expected_costs_usd, dtype=np.float64)
    mean_costs_usd = costs.mean(0) if costs.ndim > 1 else costs
    return tuple(
        str(rule)
        for policy in choosing_policies()
        for rule in policy.measured_values(mean_costs_usd)
    )


def sweep(
    outcomes: Outcomes, probabilities: Floats, expected_costs_usd: Costs
) -> tuple[Entry, ...]:
    """Return an entry for each rule of the frontier."""
    return Bench.of(outcomes).measure_all(
        "router",
        [
            (rule, *pick(outcomes, route(probabilities, expected_costs_usd, rule)))
            for rule in frontier_rules(expected_costs_usd)
        ],
    )


def best_single(outcomes: Outcomes) -> int:
    """Return the most accurate arm; the cheapest one if several are equally accurate."""
    accuracy, cost = outcomes.correct.mean(0), outcomes.cost_usd.mean(0)
    return min(range(len(accuracy)), key=lambda arm: (-accuracy[arm], cost[arm]))


def cheapest_single(outcomes: Outcomes) -> int:
    """Return the cheapest arm; the most accurate one if several cost the same."""
    accuracy, cost = outcomes.correct.mean(0), outcomes.cost_usd.mean(0)
    return min(range(len(accuracy)), key=lambda arm: (cost[arm], -accuracy[arm]))


def route(probabilities: Floats, costs_usd: Costs, rule: str) -> Choices:
    """Return the arm that a policy picks for each query, (queries,)."""
    policy = choose_once(parse_policy(rule))
    costs = np.broadcast_to(np.asarray(costs_usd, dtype=np.float64), probabilities.shape)
    return policy.choose_rows(probabilities, costs)


def oracle(outcomes: Outcomes) -> Choices:
    """Return each query's cheapest correct arm, or the most expensive arm if no arm is correct.

    This is the oracle of the paper's section 3.3. If labels are fractional, return the cheapest of
    the arms with the highest label.
    """
    top = outcomes.correct.max(axis=1, keepdims=True)
    cheapest = np.where(outcomes.correct == top, outcomes.cost_usd, np.inf).argmin(1)
    picked: Choices = np.where(top[:, 0] > 0, cheapest, outcomes.cost_usd.argmax(1))
    return picked
