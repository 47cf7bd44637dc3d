"""Goals: the cheapest rule that was measured to be accurate enough, or the best for the money."""

from __future__ import annotations

import pytest

from router_service.core.artifact import SHIPPED, Artifact, FrontierPoint, Measure
from router_service.core.cost import Price
from router_service.core.errors import PolicyError
from router_service.core.goals import Accuracy, Budget, Goal, parse_goal, reach
from router_service.core.selection import parse_policy
from router_service.router import Router


def point(policy: str, accuracy: float, usd_per_1k: float) -> FrontierPoint:
    """Return a measured point."""
    measures = [Measure(value=v, stderr=0.01, n=9) for v in (accuracy, usd_per_1k / 1_000)]
    return FrontierPoint(policy=policy, accuracy=measures[0], cost_usd=measures[1])


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    """Return the shipped artifact with a frontier of three points and a best single of 85%."""
    shipped = Artifact.load(SHIPPED)
    frontier = (
        point("drift=0.1", 0.80, 0.1),
        point("drift=0.05", 0.86, 0.5),
        point("theta=0.9", 0.9, 2),
    )
    metrics = {"best_single_accuracy": Measure(value=0.85, stderr=0.01, n=9)}
    manifest = shipped.manifest.model_copy(update={"frontier": frontier, "metrics": metrics})
    return Artifact(shipped.directory, manifest, shipped.tokenizer)


@pytest.mark.parametrize(
    ("text", "goal", "rule"),
    [
        ("accuracy=best", Accuracy(None), "drift=0.05"),
        ("accuracy=0.8", Accuracy(0.8), "drift=0.1"),
        ("accuracy=0.87", Accuracy(0.87), "theta=0.9"),
        ("usd_per_1k=0.6", Budget(0.6), "drift=0.05"),
        ("usd_per_1k=100", Budget(100.0), "theta=0.9"),
    ],
)
def test_a_goal_is_reached_by_what_was_measured(
    artifact: Artifact, text: str, goal: Goal, rule: str
) -> None:
    """Of the points that reach a goal, the cheapest; of those that can be paid, the best."""
    assert parse_goal(text, param="model") == goal
    assert reach(goal, artifact.manifest, text, param="model").policy == rule
    assert Router(artifact).policy(text) == parse_policy(rule)


@pytest.mark.parametrize(
    "text", ["accuracy=0.99", "usd_per_1k=0.01", "accuracy=x", "usd_per_1k=nan"]
)
def test_what_cannot_be_promised_is_refused(artifact: Artifact, text: str) -> None:
    """A goal that nothing reached, or that is no number, is an error that says so."""
    with pytest.raises(PolicyError) as caught:
        Router(artifact).policy(text, param="x-switchcraft-policy")
    assert caught.value.param == "x-switchcraft-policy"


def test_a_promise_holds_for_what_was_measured_alone(artifact: Artifact) -> None:
    """Other prices or fewer arms make another frontier, of which nothing is known."""
    first = artifact.manifest.arms[0]
    dear = Price(input_usd_per_mtok=99, output_usd_per_mtok=99)
    for router in (Router(artifact, arms=[first]), Router(artifact, prices={first: dear})):
        with pytest.raises(PolicyError, match="profiled prices"):
            router.policy("accuracy=best")


def test_other_rules_are_no_goals() -> None:
    """`theta` and `drift` stay what they are."""
    assert parse_goal("theta=0.5", param="model") is None
