"""Validation of goals: rules are picked as in the gateway, and measured without selection bias."""

from __future__ import annotations

import numpy as np
import pytest

from router_service.core.errors import PolicyError
from router_service.measurement.goals import find_point, parse_goal
from switchcraft_training.evaluation.frontier import (
    validate_goals,
)
from switchcraft_training.evaluation.report import main_figures
from tests.training.evaluation.cases import simulated_experiment

pytestmark = pytest.mark.usefixtures("few_draws")


def test_goal_picks_the_same_rule_as_the_gateway() -> None:
    """The pick on all queries is the one that `core` makes from the artifact's frontier."""
    made = simulated_experiment()
    figures = main_figures(made)
    best = figures.entry(figures.best_single).accuracy
    for promise in validate_goals(made, ("accuracy=best", "accuracy=best-1@95", "usd_per_1k=2")):
        goal = parse_goal(promise.goal, param="")
        assert goal is not None
        point = find_point(goal, made.figures().frontier, best, param="")
        assert promise.rule == point.policy
        assert promise.picked is not None
        assert promise.picked.accuracy == point.accuracy


def test_nested_figures_remove_selection_bias() -> None:
    """Rules of a router without skill look better on the queries that they were picked on."""
    gains = []
    for seed in range(6):
        (promise,) = validate_goals(
            simulated_experiment(150, 0.0, seed), ("usd_per_1k=100",), seed=seed
        )
        assert promise.picked is not None
        assert promise.nested is not None
        gains.append(promise.picked.accuracy.value - promise.nested.accuracy.value)
    assert np.mean(gains) > 0.01


def test_unreachable_goal_has_no_rule_and_no_figures() -> None:
    """A goal that no rule reaches has no pick and no figures; an invalid goal is an error."""
    (promise,) = validate_goals(simulated_experiment(), ("accuracy=1",))
    assert (promise.rule, promise.picked, promise.nested, promise.folds) == (None, None, None, 0)
    with pytest.raises(PolicyError, match="it is a rule; give a goal"):
        validate_goals(simulated_experiment(), ("theta=0.5",))
