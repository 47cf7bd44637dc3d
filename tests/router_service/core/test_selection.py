"""Selection: the chosen arm, the reason and the order of the others."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router_service.core.errors import PolicyError
from router_service.core.selection import (
    Draw,
    Drift,
    Policy,
    Reason,
    Selection,
    Threshold,
    explore,
    most_probable,
    parse_policy,
    ranking,
    select,
)

COSTS = (0.010, 0.001, 0.002)

GOLDEN = [
    ((0.9, 0.6, 0.7), Threshold(0.5), Selection(1, Reason.THRESHOLD)),
    ((0.9, 0.4, 0.7), Threshold(0.5), Selection(2, Reason.THRESHOLD)),
    ((0.9, 0.4, 0.7), Threshold(0.8), Selection(0, Reason.THRESHOLD)),
    ((0.5, 0.2, 0.1), Threshold(0.5), Selection(0, Reason.THRESHOLD)),
    ((0.2, 0.1, 0.4), Threshold(0.5), Selection(2, Reason.ARGMAX)),
    ((0.3, 0.3, 0.3), Threshold(0.5), Selection(1, Reason.ARGMAX)),
    ((0.9, 0.75, 0.85), Drift(0.1), Selection(2, Reason.DRIFT)),
    ((0.9, 0.8, 0.85), Drift(0.1), Selection(1, Reason.DRIFT)),
    ((0.9, 0.8, 0.85), Drift(0.0), Selection(0, Reason.DRIFT)),
    ((0.2, 0.1, 0.0), Drift(0.1), Selection(1, Reason.DRIFT)),
]


@pytest.mark.parametrize(("probabilities", "policy", "expected"), GOLDEN)
def test_policy_selects_the_expected_arm(
    probabilities: tuple[float, ...], policy: Policy, expected: Selection
) -> None:
    """Each rule selects the arm that the paper's definition selects."""
    assert select(probabilities, COSTS, policy) == expected


def test_more_probable_arm_wins_at_equal_cost() -> None:
    """Of two arms that cost the same, the more probable one is chosen."""
    assert select((0.6, 0.8), (0.001, 0.001), Threshold(0.5)).arm == 1


POLICIES: list[Policy] = [Threshold(0.5), Threshold(0.9), Drift(0.1)]
unit = st.floats(0, 1)
cost = st.floats(0, 10)


@given(st.lists(st.tuples(unit, cost), min_size=1, max_size=9), unit)
def test_threshold_selects_the_cheapest_passing_arm(
    arms: list[tuple[float, float]], theta: float
) -> None:
    """The chosen arm is the cheapest that passes, or the most probable if no arm passes."""
    probabilities, costs = [p for p, _ in arms], [c for _, c in arms]
    chosen = select(probabilities, costs, Threshold(theta))
    passing = [i for i, p in enumerate(probabilities) if p >= theta]
    if passing:
        assert chosen.reason is Reason.THRESHOLD
        assert probabilities[chosen.arm] >= theta
        assert costs[chosen.arm] == min(costs[i] for i in passing)
    else:
        assert chosen.reason is Reason.ARGMAX
        assert probabilities[chosen.arm] == max(probabilities)


@given(st.lists(st.tuples(unit, cost), min_size=1, max_size=9), unit, unit)
def test_larger_drift_never_costs_more(arms: list[tuple[float, float]], a: float, b: float) -> None:
    """A larger delta never raises the cost of the chosen arm."""
    probabilities, costs = [p for p, _ in arms], [c for _, c in arms]
    narrow = select(probabilities, costs, Drift(min(a, b)))
    wide = select(probabilities, costs, Drift(max(a, b)))
    assert costs[wide.arm] <= costs[narrow.arm]


@settings(deadline=None)
@given(st.integers(1, 9), st.data(), unit)
def test_arms_are_drawn_with_their_propensity(arms: int, data: st.DataObject, share: float) -> None:
    """Over evenly spread draws an arm's frequency is its propensity, and these add up to 1."""
    chosen = data.draw(st.integers(0, arms - 1))
    draws = [explore(chosen, arms, share, (i + 0.5) / 1000) for i in range(1000)]
    propensities = {draw.arm: draw.propensity for draw in draws}
    for arm, propensity in propensities.items():
        frequency = sum(draw.arm == arm for draw in draws) / 1000
        assert frequency == pytest.approx(propensity, abs=0.003)
    missing = (arms - len(propensities)) * share / arms
    assert sum(propensities.values()) + missing == pytest.approx(1)


def test_no_exploration_keeps_the_chosen_arm() -> None:
    """With a share of 0 the chosen arm is always taken."""
    assert {explore(2, 5, 0.0, draw / 100) for draw in range(100)} == {Draw(2, 1.0)}


@pytest.mark.parametrize("probabilities", [(), (0.5, math.nan)])
def test_select_refuses_missing_probabilities(probabilities: tuple[float, ...]) -> None:
    """No arms, or a probability that is not a number, is an error."""
    with pytest.raises(ValueError, match="not a probability"):
        select(probabilities, [0.1] * len(probabilities), Threshold(0.5))


@pytest.mark.parametrize("policy", [Threshold(0.5), Threshold(1.0), Drift(0.0), Drift(0.125)])
def test_policy_text_round_trip(policy: Policy) -> None:
    """`str` and `parse_policy` are inverses."""
    assert parse_policy(str(policy)) == policy


@pytest.mark.parametrize(
    "text", ["", "theta", "theta=", "theta=x", "theta=1.5", "theta=-0.1", "drift=nan", "cheap=1"]
)
def test_invalid_policy_is_quoted(text: str) -> None:
    """The error for an invalid rule quotes its text."""
    with pytest.raises(PolicyError) as caught:
        parse_policy(text, param="x-switchcraft-policy")
    assert repr(text) in str(caught.value)
    assert caught.value.param == "x-switchcraft-policy"


@given(st.lists(st.tuples(unit, cost), min_size=1, max_size=9), st.sampled_from(POLICIES))
def test_ranking_repeats_the_selection(arms: list[tuple[float, float]], policy: Policy) -> None:
    """Each arm comes once, and is what the policy selects among the arms not yet tried."""
    probabilities, costs = [p for p, _ in arms], [c for _, c in arms]
    order = ranking(probabilities, costs, policy)
    assert sorted(order) == list(range(len(arms)))
    for tried, arm in enumerate(order):
        left = sorted(order[tried:])
        chosen = select([probabilities[i] for i in left], [costs[i] for i in left], policy)
        assert left[chosen.arm] == arm


@given(st.lists(st.tuples(unit, cost), min_size=1, max_size=9))
def test_ranking_without_a_policy_is_by_probability(
    arms: list[tuple[float, float]],
) -> None:
    """Each arm comes once, and is the most probable of the arms not yet tried."""
    probabilities, costs = [p for p, _ in arms], [c for _, c in arms]
    order = ranking(probabilities, costs, None)
    assert sorted(order) == list(range(len(arms)))
    for tried, arm in enumerate(order):
        left = sorted(order[tried:])
        likeliest = most_probable([probabilities[i] for i in left], [costs[i] for i in left])
        assert left[likeliest] == arm
