"""Policies: how they are written, the chosen arm, the reason and the order of the others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router_service.core.errors import PolicyError
from router_service.core.reasons import Reason
from router_service.policies.base import (
    Policy,
    Selection,
)
from router_service.policies.drift import Drift
from router_service.policies.registry import choose_once, parse_policy
from router_service.policies.threshold import Threshold
from router_service.policies.utility import Utility

COSTS = (0.010, 0.001, 0.002)

GOLDEN = [
    ((0.9, 0.6, 0.7), Threshold(0.5), Selection(1, Reason.THRESHOLD)),
    ((0.9, 0.4, 0.7), Threshold(0.5), Selection(2, Reason.THRESHOLD)),
    ((0.9, 0.4, 0.7), Threshold(0.8), Selection(0, Reason.THRESHOLD)),
    ((0.2, 0.1, 0.4), Threshold(0.5), Selection(2, Reason.ARGMAX)),
    ((0.9, 0.75, 0.85), Drift(0.1), Selection(2, Reason.DRIFT)),
    ((0.9, 0.8, 0.85), Drift(0.1), Selection(1, Reason.DRIFT)),
    ((0.2, 0.1, 0.0), Drift(0.1), Selection(1, Reason.DRIFT)),
    ((0.9, 0.6, 0.7), Utility(0.001), Selection(1, Reason.UTILITY)),
    ((0.9, 0.6, 0.7), Utility(0.012), Selection(2, Reason.UTILITY)),
    ((0.9, 0.6, 0.7), Utility(0.05), Selection(0, Reason.UTILITY)),
]


@pytest.mark.parametrize(("probabilities", "policy", "expected"), GOLDEN)
def test_policy_selects_the_expected_arm(
    probabilities: tuple[float, ...], policy: Policy, expected: Selection
) -> None:
    """Each rule selects the arm that the paper's definition selects."""
    assert policy.choose(probabilities, COSTS) == expected


POLICIES: list[Policy] = [Threshold(0.5), Threshold(0.9), Drift(0.1), Utility(0.5)]
unit = st.floats(0, 1)
cost = st.floats(0, 10)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "certainty=1",
            (
                "write theta=P or drift=P with P from 0 to 1, or utility=PRICE or verified=PRICE "
                "with PRICE in USD"
            ),
        ),
        ("theta", "'' is not a number"),
        ("drift=1.5", "1.5 is outside 0 to 1; for 1.5%, write drift=0.015"),
        ("theta=87", "87 is outside 0 to 1; for 87%, write theta=0.87"),
        ("drfit=0.1", "did you mean drift=0.1?"),
        ("verified=-1", "the price -1 is not a number of USD"),
        ("utility=-1", "the price -1 is not a number of USD"),
    ],
)
def test_invalid_policy_error_names_the_problem(text: str, problem: str) -> None:
    """The error says what to correct, and in which field: `model` unless another one is named."""
    with pytest.raises(PolicyError) as caught:
        parse_policy(text)
    assert (caught.value.problem, caught.value.param) == (problem, "model")


@given(st.lists(st.tuples(unit, cost), min_size=1, max_size=9), st.sampled_from(POLICIES))
def test_ranking_repeats_the_selection(arms: list[tuple[float, float]], policy: Policy) -> None:
    """Each arm comes once, and is what the policy selects among the arms not yet tried."""
    probabilities, costs = [p for p, _ in arms], [c for _, c in arms]
    order = policy.ranking(probabilities, costs)
    assert sorted(order) == list(range(len(arms)))
    for tried, arm in enumerate(order):
        left = sorted(order[tried:])
        chosen = policy.choose([probabilities[i] for i in left], [costs[i] for i in left])
        assert left[chosen.arm] == arm


@pytest.mark.parametrize(
    "rule",
    [
        "theta=0.5",
        "drift=0.25",
        "utility=0.5",
    ],
)
def test_rows_are_selected_as_single_requests(rule: str) -> None:
    """Many rows at once get the arms that `choose` chooses one by one, even if arms are equal."""
    rng = np.random.default_rng(0)
    probabilities = rng.integers(0, 5, (2_000, 4)) / 4  # Few values, so that arms are often equal.
    costs_usd = rng.integers(1, 4, (2_000, 4)) / 4
    policy = choose_once(parse_policy(rule))
    rows = zip(probabilities.tolist(), costs_usd.tolist(), strict=True)
    one_by_one = [policy.choose(row, cost).arm for row, cost in rows]
    assert policy.choose_rows(probabilities, costs_usd).tolist() == one_by_one
