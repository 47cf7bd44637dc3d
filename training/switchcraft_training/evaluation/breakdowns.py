"""Breakdowns of a router's results by category and by outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from router_service.artifact import Measure
from router_service.measurement.rules import Choices, best_single, oracle
from router_service.measurement.statistics import mean_measure
from switchcraft_training.data.table import Floats, Table
from switchcraft_training.evaluation.evaluate import Entrant
from switchcraft_training.evaluation.metrics import paired_interval


@dataclass(frozen=True, slots=True)
class Score:
    """Accuracy, and mean cost of a query in USD."""

    accuracy: Measure
    cost_usd: Measure


@dataclass(frozen=True, slots=True)
class Category:
    """Scores of every arm, the router and the oracle in one category.

    `difference` is the router's accuracy minus the best single model's accuracy, both in this
    category. The best single model is chosen over all categories.
    """

    name: str
    n: int
    scores: Mapping[str, Score]
    difference: float
    difference_interval: tuple[float, float]


@dataclass(frozen=True, slots=True)
class RoutingOutcome:
    """Number and share of queries with one of the four routing outcomes."""

    name: str
    meaning: str
    count: float
    share: Measure


@dataclass(frozen=True, slots=True)
class Routing:
    """The four routing outcomes (paper, section 4.7).

    The overhead is the extra cost of the choices that are correct, but not the cheapest correct
    ones.
    """

    outcomes: tuple[RoutingOutcome, ...]
    median_overhead_usd: float
    total_overhead_usd: float


def by_category(table: Table, chosen: Choices, categories: Sequence[str]) -> tuple[Category, ...]:
    """Score the arms, the router and the oracle in each category, largest category first."""
    names = np.array(categories)
    counts = {str(name): int((names == name).sum()) for name in np.unique(names)}
    best = best_single(table)
    found = []
    for name in sorted(counts, key=lambda name: (-counts[name], name)):
        part = table.take(names == name)
        ours, paid = part.pick(chosen[names == name])
        theirs = part.correct[:, best]
        layers = zip(part.arms, part.correct.T, part.cost_usd.T, strict=True)
        scores = {arm: _score(correct, usd) for arm, correct, usd in layers}
        scores |= {"router": _score(ours, paid), "oracle": _score(*part.pick(oracle(part)))}
        found.append(
            Category(
                name=name,
                n=counts[name],
                scores=scores,
                difference=float((ours - theirs).mean()),
                difference_interval=paired_interval(ours, theirs),
            )
        )
    return tuple(found)


def _score(correct: Floats, cost_usd: Floats) -> Score:
    return Score(mean_measure(correct), mean_measure(cost_usd))


def dataset_oracle(table: Table, categories: Sequence[str]) -> Entrant:
    """Return an entrant that uses the best single arm of each category, chosen in hindsight.

    No router that uses only a query's category is more accurate on these queries.
    """
    names = np.array(categories)
    choices = np.zeros(len(names), dtype=np.int64)
    for name in np.unique(names):
        choices[names == name] = best_single(table.take(names == name))
    return Entrant("oracle", "dataset oracle", choices)


def routing(table: Table, chosen: Choices) -> Routing:
    """Count the four routing outcomes; a query with fractional labels counts partly in several."""
    got, paid = table.pick(chosen)
    _, ideal_usd = table.pick(oracle(table))
    top = table.correct.max(axis=1)
    optimal = np.where((got == top) & (paid <= ideal_usd), got, 0.0)
    suboptimal = got - optimal
    overhead_usd = (paid - ideal_usd)[suboptimal > 0]
    parts = (
        ("correct, optimal", "the cheapest correct model was chosen", optimal),
        ("correct, suboptimal", "a correct but costlier model was chosen", suboptimal),
        ("wrong model", "a correct model exists, the chosen one failed", top - got),
        ("no correct model", "every model in the pool fails", 1 - top),
    )
    return Routing(
        outcomes=tuple(
            RoutingOutcome(name, meaning, float(part.sum()), mean_measure(part))
            for name, meaning, part in parts
        ),
        median_overhead_usd=float(np.median(overhead_usd)) if len(overhead_usd) else 0.0,
        total_overhead_usd=float(overhead_usd.sum()),
    )
