"""Metrics of a router over all rules of its frontier: other papers' metrics, budgets and goals.

RouteLLM: Ong et al., 2024, arXiv 2406.18665, section 3.1, and `routellm/evals/evaluate.py`.

RouterBench: Hu et al., 2024, arXiv 2403.12031, section 3, and its `evaluation/AIQ.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from sklearn.model_selection import GroupKFold

from router_service.artifact import FrontierPoint, Measure
from router_service.core.errors import PolicyError
from router_service.measurement.goals import Goal, find_point, parse_goal
from router_service.measurement.rules import (
    Bench,
    Choices,
    Costs,
    Entry,
    best_single,
    cheapest_single,
    frontier_rules,
    route,
)
from router_service.measurement.statistics import Estimate, auc_measure, mean_measure
from switchcraft_training.data.table import Floats, Table
from switchcraft_training.evaluation.evaluate import Experiment
from switchcraft_training.evaluation.metrics import bootstrap, brier_measure, calibration_measure

BUDGETS = (0.05, 0.10, 0.16, 0.30, 0.50, 1.00)
"""Shares of the best single model's cost; 0.16 is the share in the paper."""


@dataclass(frozen=True, slots=True)
class PaperMetrics:
    """Metrics of other papers for one router that predicts probabilities.

    `apgr` is RouteLLM's metric and `aiq` RouterBench's. `aiq_gain` is `aiq` minus the AIQ of the
    single models. `matching` is the cheapest rule of the sweep that is as accurate as the best
    single model. `affordable` is the most accurate rule that costs no more than the best single
    model. Both rules are picked on the same queries that they are measured on.
    """

    name: str
    auc: Measure
    calibration_error: Measure
    brier: Measure
    apgr: Estimate | None
    aiq: Estimate | None
    aiq_gain: Estimate | None
    matching: Entry | None
    affordable: Entry | None


@dataclass(frozen=True, slots=True)
class Budget:
    """The most accurate rule that costs at most this share of the best single model's cost."""

    share: float
    entry: Entry


def paper_metrics(
    name: str, table: Table, probabilities: Floats, expected_costs_usd: Costs
) -> PaperMetrics:
    """Return other papers' metrics of a router over the sweep of thresholds and drifts."""
    names = frontier_rules(expected_costs_usd)
    rules = [table.pick(route(probabilities, expected_costs_usd, rule)) for rule in names]
    entries = Bench.of(table).measure_all(
        "router", [(rule, *found) for rule, found in zip(names, rules, strict=True)]
    )
    # Costs, then correctness, of arms and rules: (queries, 2 x (arms + rules)).
    costs = [table.cost_usd, *(paid[:, None] for _, paid in rules)]
    correct = [table.correct, *(got[:, None] for got, _ in rules)]
    columns = np.hstack([*costs, *correct])
    arms, best, cheapest = len(table.arms), best_single(table), cheapest_single(table)

    def split(means: Floats) -> tuple[Floats, Floats]:
        """Return single models and the sweep as points (cost, accuracy)."""
        points = means.reshape(2, -1).T  # (arms + rules, 2)
        return points[:arms], points[arms:]

    def apgr_of(means: Floats) -> float:
        singles, rules = split(means)
        return apgr(rules, singles[cheapest], singles[best])

    def aiq_of(means: Floats) -> float:
        singles, rules = split(means)
        return aiq(rules, singles[:, 0].min(), singles[:, 0].max())

    def gain_of(means: Floats) -> float:
        singles, _ = split(means)
        return aiq_of(means) - aiq(singles, singles[:, 0].min(), singles[:, 0].max())

    return PaperMetrics(
        name=name,
        auc=auc_measure(table.correct, probabilities),
        calibration_error=calibration_measure(table.correct, probabilities),
        brier=brier_measure(table.correct, probabilities),
        apgr=bootstrap(columns, apgr_of),
        aiq=bootstrap(columns, aiq_of),
        aiq_gain=bootstrap(columns, gain_of),
        matching=matching(entries),
        affordable=affordable(entries, 1.0),
    )


def apgr(points: Floats, weak: Floats, strong: Floats) -> float:
    """Return RouteLLM's average performance gap recovered; points are (cost, accuracy).

    This is the mean of (accuracy - weak) / (strong - weak) when 10%, 20%, ..., 100% of calls go to
    the strong model. RouteLLM has only a weak and a strong model. Here, the pool's cheapest model
    is the weak one, and the best model is the strong one. The share of calls is replaced by the
    position of the cost between the costs of these two models. As in RouteLLM's code, the curve is
    linear between points of the sweep. It starts at the weak model, and stays at the last point's
    accuracy after that point. Return NaN unless the strong model is both better and more expensive.
    """
    width, height = (strong - weak).tolist()
    if width <= 0 or height <= 0:
        return float("nan")
    ordered = np.vstack([weak, points[points[:, 0].argsort()]])
    shares = (ordered[:, 0] - weak[0]) / width
    recovered = (ordered[:, 1] - weak[1]) / height
    start = int((shares <= 0).nonzero()[0].max())  # rules cheaper than the weak model
    at = np.linspace(0.1, 1.0, 10)
    return float(np.interp(at, shares[start:], recovered[start:]).mean())


def aiq(points: Floats, low_usd: float, high_usd: float) -> float:
    """Return RouterBench's average improvement in quality; points are (cost, accuracy).

    This is the mean height of the points' non-decreasing convex hull between two costs: those of
    the cheapest and of the most expensive single model. The hull starts at the null router (no
    cost, no correct answer), and stays at the last point's accuracy after that point. Return NaN if
    the two costs are equal.
    """
    if not high_usd > low_usd:
        return float("nan")
    hull = convex_hull(points)
    inner = hull[:, 0][(hull[:, 0] > low_usd) & (hull[:, 0] < high_usd)]
    costs = np.array([low_usd, *inner, high_usd])
    heights = np.interp(costs, hull[:, 0], hull[:, 1])
    return float(np.trapezoid(heights, costs) / (high_usd - low_usd))


def convex_hull(points: Floats) -> Floats:
    """Return the non-decreasing convex hull of the null router and the points, by rising cost."""
    hull: list[tuple[float, float]] = [(0.0, 0.0)]
    for cost, accuracy in sorted(map(tuple, points.tolist()), key=lambda p: (p[0], -p[1])):
        if accuracy <= hull[-1][1]:
            continue
        while len(hull) > 1:
            (left_cost, left), (middle_cost, middle) = hull[-2:]
            # Keep the middle point only if it is above the line between its neighbours.
            rise = (middle - left) * (cost - left_cost)
            if rise > (accuracy - left) * (middle_cost - left_cost):
                break
            hull.pop()
        hull.append((cost, accuracy))
    return np.array(hull)


def matching(entries: Sequence[Entry]) -> Entry | None:
    """Return the cheapest entry that is as accurate as the best single model, or None."""
    reached = [entry for entry in entries if entry.difference >= 0]
    return min(reached, key=lambda e: (e.cost_usd.value, -e.accuracy.value), default=None)


def affordable(entries: Sequence[Entry], share: float) -> Entry | None:
    """Return the most accurate entry within a share of the best single model's cost, or None."""
    reached = [entry for entry in entries if entry.cost_share <= share]
    return max(reached, key=lambda e: (e.accuracy.value, -e.cost_usd.value), default=None)


def budgets(entries: Sequence[Entry]) -> tuple[Budget, ...]:
    """Return the best rule for each budget, without budgets that do not improve on smaller ones."""
    bought = [(share, affordable(entries, share)) for share in BUDGETS]
    found = [Budget(share, entry) for share, entry in bought if entry is not None]
    repeated = {after.share for before, after in pairwise(found) if after.entry == before.entry}
    return tuple(budget for budget in found if budget.share not in repeated)


GOAL_ACCURACIES = ("best-1", "best", "best@95", "best+1", "best+2", "best+3")
GOAL_BUDGETS = (0.16, 0.30, 0.50, 1.0)
"""Shares of the best single model's cost; 0.16 is the share in the paper."""
GOAL_FOLDS = 5
PARAM = "goal"


@dataclass(frozen=True, slots=True)
class GoalResult:
    """A goal, the rule that reaches it, and the rule's results.

    `rule` is picked on all queries, and `picked` is its result on the same queries. `nested` is the
    result on held-out queries: each fold uses the rule that is picked on the other folds. If no
    rule reaches the goal on the other folds, `nested` leaves out the fold; `folds` is the number of
    remaining folds. `rule`, `picked` and `nested` are None if no rule reaches the goal.
    """

    goal: str
    rule: str | None
    picked: Entry | None
    nested: Entry | None
    folds: int


@dataclass(frozen=True, slots=True)
class MeasuredRules:
    """Results of every rule on a set of queries, and the best single model's accuracy on them."""

    frontier: tuple[FrontierPoint, ...]
    best_single: Measure

    @classmethod
    def on(cls, table: Table, choices: Mapping[str, Choices], rows: Choices) -> MeasuredRules:
        """Measure the choices of every rule on these rows of a table."""
        part = table.take(rows)
        bench = Bench.of(part)
        entries = bench.measure_all(
            "router", [(rule, *part.pick(chosen[rows])) for rule, chosen in choices.items()]
        )
        return cls(tuple(entry.point for entry in entries), mean_measure(bench.best))

    def pick(self, goal: Goal) -> str | None:
        """Return the rule that reaches a goal, or None if no rule does."""
        try:
            return find_point(goal, self.frontier, self.best_single, param=PARAM).policy
        except PolicyError:
            return None


def validate_goals(
    experiment: Experiment, goals: Sequence[str] = (), *, seed: int = 0
) -> tuple[GoalResult, ...]:
    """Return the result of each goal, also on queries that the goal's rule was not picked on.

    The best of many rules looks slightly better than it is on the queries that it was picked on. A
    rule that is picked on four folds and measured on the fifth has no such advantage.
    Near-duplicates are always in the same fold. The router was not trained on any of these queries;
    only the rule is picked on them.

    The default goals are `usual_goals`. Return an empty tuple if there are fewer groups of
    near-duplicates than folds. Raises PolicyError for an invalid goal.
    """
    table = experiment.table
    groups = table.groups
    if len(np.unique(groups)) < GOAL_FOLDS:
        return ()
    choices = {
        rule: route(experiment.probabilities, experiment.expected_costs_usd, rule)
        for rule in frontier_rules(experiment.expected_costs_usd)
    }
    kfold = GroupKFold(GOAL_FOLDS, shuffle=True, random_state=seed)
    everything = MeasuredRules.on(table, choices, np.arange(len(groups)))
    folds = [
        (MeasuredRules.on(table, choices, picked_on), held_out)
        for picked_on, held_out in kfold.split(groups, groups=groups)
    ]
    results = []
    for text in goals or usual_goals(table):
        goal = parse_goal(text, param=PARAM)
        if goal is None:
            raise PolicyError(text, "it is a rule; give a goal such as accuracy=best", param=PARAM)
        rule = everything.pick(goal)
        picks = [(rules.pick(goal), held_out) for rules, held_out in folds]
        reached = [(choices[pick][rows], rows) for pick, rows in picks if pick is not None]
        nested = None
        if reached:
            chosen, rows = (np.concatenate(parts) for parts in zip(*reached, strict=True))
            nested = measure_rule("nested", table.take(rows), chosen)
        result = GoalResult(
            goal=str(goal),
            rule=rule,
            picked=None if rule is None else measure_rule(rule, table, choices[rule]),
            nested=nested,
            folds=len(reached),
        )
        results.append(result)
    return tuple(results)


def measure_rule(name: str, table: Table, chosen: Choices) -> Entry:
    """Return the results of a rule whose choices are `chosen`, (queries,)."""
    return Bench.of(table).measure("router", name, *table.pick(chosen))


def usual_goals(table: Table) -> tuple[str, ...]:
    """Return the default goals, relative to the best single model's accuracy and cost."""
    usd_per_1k = table.cost_usd[:, best_single(table)].mean() * 1_000
    return (
        *(f"accuracy={accuracy}" for accuracy in GOAL_ACCURACIES),
        *(f"usd_per_1k={usd_per_1k * share:.4g}" for share in GOAL_BUDGETS),
    )
