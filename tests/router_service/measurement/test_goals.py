"""Goals: the cheapest rule that is accurate enough, or the best rule within a budget."""

from __future__ import annotations

import pytest

from router_service.artifact import Artifact
from router_service.core.errors import PolicyError
from router_service.measurement.goals import (
    Goal,
    find_point,
    parse_goal,
)
from router_service.policies.registry import parse_policy
from router_service.router import Router
from tests.frontiers import POINTS, VERIFIED_POINTS, with_frontier


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    """Return an artifact with a frontier of four points, one of them worse and more expensive."""
    return with_frontier(*POINTS)


@pytest.mark.parametrize(
    ("text", "goal", "rule"),
    [
        ("accuracy=best", Goal("best"), "drift=0.05"),
        ("accuracy=best@95", Goal("best", uses_interval=True), "theta=0.9"),
        ("accuracy=best-1@95", Goal("best", -1, uses_interval=True), "drift=0.05"),
        ("accuracy=best+2.5", Goal("best", 2.5), "theta=0.9"),
        ("accuracy=0.8", Goal("accuracy", 0.8), "drift=0.1"),
        ("accuracy=0.8@95", Goal("accuracy", 0.8, uses_interval=True), "drift=0.05"),
        ("within=0.5", Goal("within", 0.5), "drift=0.05"),
        ("within=6", Goal("within", 6), "drift=0.1"),
        ("usd_per_1k=0.5", Goal("usd_per_1k", 0.5), "drift=0.05"),
        ("usd_per_1k=0.5@95", Goal("usd_per_1k", 0.5, uses_interval=True), "drift=0.1"),
    ],
)
def test_goal_selects_the_best_measured_point(
    artifact: Artifact, text: str, goal: Goal, rule: str
) -> None:
    """An accuracy goal selects the cheapest point that reaches it, a budget the most accurate.

    With @95 the worse end of the interval must reach the goal. For a goal relative to the best
    single model, that is the interval of the difference.
    """
    assert parse_goal(text, param="model") == goal
    assert str(goal) == text
    manifest = artifact.manifest
    found = find_point(goal, manifest.frontier, manifest.best_single_accuracy, param="model")
    assert found.policy == rule
    assert Router(artifact).policy(text) == parse_policy(rule)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("accuracy=0.99", "theta=0.9, reached 90.0%"),
        ("accuracy=best+9", r"theta=0.9, reached \+5.0 points against the best"),
        ("usd_per_1k=0.01", "drift=0.1, reached 0.100 USD per 1,000"),
        ("accuracy=0.89@95", "theta=0.9, reached 88.0% at the worse end of its 95% interval"),
        ("accuracy=best@90", "write @95, not @90"),
        ("accuracy=best-x", "'best-x' is not a number"),
        ("accuracy=87", "an accuracy is between 0 and 1, not 87; for 87%, write accuracy=0.87"),
        ("within=0.5@95", "this goal compares estimates; omit @95"),
        ("usd_per_1k=nan", "must be finite and at least 0, not nan"),
    ],
)
def test_unreachable_goals_name_the_nearest_point(artifact: Artifact, text: str, told: str) -> None:
    """A goal that no point reaches, or that is not a number, is an error that explains why."""
    with pytest.raises(PolicyError, match=told) as caught:
        Router(artifact).policy(text, param="x-switchcraft-policy")
    assert caught.value.param == "x-switchcraft-policy"


@pytest.fixture(scope="module")
def verifying() -> Router:
    """Return a router with the same frontier and two verified points."""
    return Router(with_frontier(*POINTS, verified=VERIFIED_POINTS))


def test_goal_chooses_no_verified_policy_unless_it_is_allowed(verifying: Router) -> None:
    """A goal that only verified answers reach is refused, and the error says how to allow them."""
    assert verifying.policy("accuracy=best") == parse_policy("drift=0.05")
    with pytest.raises(PolicyError, match="verified answers reach it: allow them for goals with"):
        verifying.policy("accuracy=0.92")
