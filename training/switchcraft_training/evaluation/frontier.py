"""Goals: the rule of a router's frontier that reaches each, and what it reaches elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.model_selection import GroupKFold

from router_service.artifact import FrontierPoint, Measure
from router_service.core.errors import PolicyError
from router_service.measurement.goals import Goal, find_point, parse_goal
from router_service.measurement.rules import (
    Bench,
    Choices,
    Entry,
    best_single,
    frontier_rules,
    route,
)
from router_service.measurement.statistics import mean_measure
from switchcraft_training.data.table import Table
from switchcraft_training.evaluation.evaluate import Experiment

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
