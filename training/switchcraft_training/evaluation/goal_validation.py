"""Validation of goals: each goal's rule is measured on queries that it was not picked on.

The best of many rules looks slightly better than it is on the queries that it was picked on. A rule
that is picked on four folds and measured on the fifth has no such advantage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.model_selection import GroupKFold

from router_service.core.artifact import FrontierPoint, Measure
from router_service.core.errors import PolicyError
from router_service.core.goals import Goal, find_point, parse_goal
from switchcraft_training.data.splits import near_duplicates
from switchcraft_training.data.table import Choices, Table
from switchcraft_training.evaluation.evaluate import (
    FRONTIER,
    Bench,
    Entry,
    best_single,
    route,
)
from switchcraft_training.evaluation.experiment import Experiment
from switchcraft_training.evaluation.metrics import mean_measure

ACCURACIES = ("best-1", "best", "best@95", "best+1", "best+2", "best+3")
BUDGETS = (0.16, 0.30, 0.50, 1.0)
"""Shares of the best single model's cost; 0.16 is the paper's."""
FOLDS = 5
PARAM = "goal"


@dataclass(frozen=True, slots=True)
class GoalResult:
    """A goal, the rule that reaches it, and the figures of that rule.

    `picked` is measured on the queries that the rule was picked on. `nested` is measured on
    held-out queries: each fold with the rule that the other folds pick. It leaves out folds for
    which no rule reaches the goal; `folds` counts the others. All are None if no rule reaches it.
    """

    goal: str
    rule: str | None
    picked: Entry | None
    nested: Entry | None
    folds: int


@dataclass(frozen=True, slots=True)
class _Seen:
    """The figures of every rule on some queries, and the best single model's accuracy there."""

    frontier: tuple[FrontierPoint, ...]
    best_single: Measure

    def pick(self, goal: Goal) -> str | None:
        """Return the rule that reaches a goal, or None if no rule does."""
        try:
            return find_point(goal, self.frontier, self.best_single, param=PARAM).policy
        except PolicyError:
            return None


def validate_goals(
    experiment: Experiment, goals: Sequence[str] = (), *, seed: int = 0
) -> tuple[GoalResult, ...]:
    """Validate goals (default: `usual_goals`) in folds that keep near-duplicates together.

    The router has not seen the queries; only the rule is picked on them. Return an empty tuple if
    there are fewer groups of queries than folds. Raises PolicyError for an invalid goal.
    """
    groups = near_duplicates(experiment.table.examples)
    if len(set(groups)) < FOLDS:
        return ()
    table = experiment.table
    choices = {
        rule: route(experiment.probabilities, experiment.expected_costs_usd, rule)
        for rule in FRONTIER
    }
    splits = list(GroupKFold(FOLDS, shuffle=True, random_state=seed).split(groups, groups=groups))
    everything = _see(table, choices, np.arange(len(groups)))
    folds = [(_see(table, choices, seen), left) for seen, left in splits]
    return tuple(
        _validate_goal(_goal(text), table, choices, everything, folds)
        for text in goals or usual_goals(table)
    )


def usual_goals(table: Table) -> tuple[str, ...]:
    """Return goals relative to the best single model's accuracy and cost."""
    usd_per_1k = table.cost_usd[:, best_single(table)].mean() * 1_000
    return (
        *(f"accuracy={accuracy}" for accuracy in ACCURACIES),
        *(f"usd_per_1k={usd_per_1k * share:.4g}" for share in BUDGETS),
    )


def _goal(text: str) -> Goal:
    goal = parse_goal(text, param=PARAM)
    if goal is None:
        raise PolicyError(text, "is a rule, not a goal", param=PARAM)
    return goal


def _see(table: Table, choices: Mapping[str, Choices], rows: Choices) -> _Seen:
    seen = table.take(rows)
    bench = Bench.of(seen)
    return _Seen(
        frontier=tuple(
            bench.measure("router", rule, *seen.pick(chosen[rows])).point
            for rule, chosen in choices.items()
        ),
        best_single=mean_measure(bench.best),
    )


def _validate_goal(
    goal: Goal,
    table: Table,
    choices: Mapping[str, Choices],
    everything: _Seen,
    folds: Sequence[tuple[_Seen, Choices]],
) -> GoalResult:
    rule = everything.pick(goal)
    picks = [(seen.pick(goal), left) for seen, left in folds]
    kept = [(choices[picked][left], left) for picked, left in picks if picked is not None]
    return GoalResult(
        goal=str(goal),
        rule=rule,
        picked=None if rule is None else _measure(rule, table, choices[rule]),
        nested=_nested(table, kept),
        folds=len(kept),
    )


def _nested(table: Table, kept: Sequence[tuple[Choices, Choices]]) -> Entry | None:
    """Measure the choices of each fold on its rows, given as (choices, rows)."""
    if not kept:
        return None
    chosen, rows = (np.concatenate(parts) for parts in zip(*kept, strict=True))
    return _measure("nested", table.take(rows), chosen)


def _measure(name: str, table: Table, chosen: Choices) -> Entry:
    return Bench.of(table).measure("router", name, *table.pick(chosen))
