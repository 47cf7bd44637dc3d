"""Selection: prices and costs, the chosen arm, the reason and the order of the others."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from router_service.apis.usage import Usage
from router_service.core.errors import PolicyError
from router_service.policies.selection import (
    DRIFT_TOLERANCE,
    ArmProfile,
    Draw,
    Drift,
    LongPromptPrice,
    Policy,
    Price,
    Reason,
    Selection,
    Threshold,
    Utility,
    Verified,
    choose_once,
    explore,
    least_probability,
    most_probable,
    parse_policy,
    ranking,
    select,
    select_rows,
)


@pytest.mark.parametrize(
    "named", [{}, {"input_usd_per_mtok": 1}, {"output_usd_per_mtok": 1, "usd_per_hour": 1}]
)
def test_incomplete_prices_are_refused(named: dict[str, float]) -> None:
    """One token price without the other, or no price at all, is an error and not 0."""
    with pytest.raises(ValidationError, match=r"set (both )?input_usd_per_mtok and output"):
        Price.model_validate(named)


def test_tokens_and_time_add_up() -> None:
    """Tokens cost their price, hours cost theirs, and a price of both adds up."""
    tokens = Price(input_usd_per_mtok=2, output_usd_per_mtok=8)
    assert tokens.cost_usd(1_000_000, 500_000, seconds=3600) == pytest.approx(6)
    hour = Price(usd_per_hour=1.2)
    assert hour.cost_usd(1_000_000, 500_000, seconds=1800) == pytest.approx(0.6)
    both = Price(input_usd_per_mtok=2, output_usd_per_mtok=8, usd_per_hour=1.2)
    assert both.cost_usd(1_000_000, 500_000, seconds=1800) == pytest.approx(6.6)


def test_profile_uses_its_own_or_another_price() -> None:
    """A profile has an hourly price, and can be priced by tokens instead."""
    hour = Price(usd_per_hour=3.6)
    profile = ArmProfile(input_tokens=100, output_tokens=10, seconds=2, price=hour, n=1)
    assert profile.cost_usd() == pytest.approx(0.002)
    own = Price(input_usd_per_mtok=1, output_usd_per_mtok=1)
    assert profile.cost_usd(own) == pytest.approx(110e-6)


def test_profile_without_seconds_is_read() -> None:
    """A manifest without seconds and hourly prices is still valid."""
    price = {"input_usd_per_mtok": 1.0, "output_usd_per_mtok": 2.0}
    row = {"input_tokens": 10.0, "output_tokens": 5.0, "price": price, "n": 3}
    assert ArmProfile.model_validate(row).cost_usd() == pytest.approx(20e-6)


FULL = Price(
    input_usd_per_mtok=10,
    output_usd_per_mtok=100,
    cached_input_usd_per_mtok=1,
    cache_write_usd_per_mtok=12,
    reasoning_usd_per_mtok=200,
)


def test_each_token_is_paid_once() -> None:
    """Cached and written tokens are part of the prompt, and reasoning is part of the answer."""
    usage = Usage(1_000, 100, cached_tokens=600, cache_write_tokens=300, reasoning_tokens=40)
    usd = (100 * 10 + 600 * 1 + 300 * 12 + 60 * 100 + 40 * 200) / 1_000_000
    assert FULL.cost_of(usage, seconds=0) == pytest.approx(usd)


def test_time_or_tokens_without_a_price_cost_nothing() -> None:
    """With only token prices, time is free; with only an hourly price, tokens are free."""
    usage = Usage(1_000, 100)
    assert FULL.cost_of(usage, seconds=3600) == FULL.cost_of(usage, seconds=0)
    assert Price(usd_per_hour=3.6).cost_of(usage, seconds=2) == pytest.approx(0.002)


def test_missing_special_prices_default_to_list_prices() -> None:
    """With two list prices, an answer costs the same with and without caching or reasoning."""
    price = Price(input_usd_per_mtok=10, output_usd_per_mtok=100, usd_per_hour=3.6)
    plain = price.cost_of(Usage(1_000, 100), seconds=2)
    assert plain == pytest.approx(0.02 + 0.002)
    parts = Usage(1_000, 100, cached_tokens=600, cache_write_tokens=9, reasoning_tokens=40)
    assert price.cost_of(parts, seconds=2) == pytest.approx(plain)


def test_long_prompt_changes_all_prices() -> None:
    """The long price applies above the limit, and to the tokens of the answer too."""
    long = LongPromptPrice(
        above_prompt_tokens=200_000, price=Price(input_usd_per_mtok=2, output_usd_per_mtok=3)
    )
    price = Price(input_usd_per_mtok=1, output_usd_per_mtok=1, long_prompts=(long,))
    assert price.cost_of(Usage(200_000, 1_000_000), 0) == pytest.approx(1.2)
    assert price.cost_of(Usage(200_001, 1_000_000), 0) == pytest.approx(3.400002)


def test_long_prompt_limits_must_rise() -> None:
    """Limits in falling order are refused, because the last one that applies counts."""
    limits = [{"above_prompt_tokens": n, "price": {"usd_per_hour": 1}} for n in (2, 1)]
    with pytest.raises(ValidationError, match="from short to long"):
        Price.model_validate({"usd_per_hour": 1, "long_prompts": limits})


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
    ((0.9, 0.6, 0.7), Utility(0.001), Selection(1, Reason.UTILITY)),
    ((0.9, 0.6, 0.7), Utility(0.012), Selection(2, Reason.UTILITY)),
    ((0.9, 0.6, 0.7), Utility(0.05), Selection(0, Reason.UTILITY)),
    ((0.9, 0.6, 0.7), Utility(0.0), Selection(1, Reason.UTILITY)),
]


@pytest.mark.parametrize(("probabilities", "policy", "expected"), GOLDEN)
def test_policy_selects_the_expected_arm(
    probabilities: tuple[float, ...], policy: Policy, expected: Selection
) -> None:
    """Each rule selects the arm that the paper's definition selects."""
    assert select(probabilities, COSTS, policy) == expected


@pytest.mark.parametrize(
    ("probabilities", "policy"),
    [
        ((0.9, 0.5, 0.7), Threshold(0.5)),
        ((0.9, 0.8, 0.85), Drift(0.1)),
        ((0.9, 0.9 - 0.1 - DRIFT_TOLERANCE, 0.85), Drift(0.1)),
    ],
)
def test_arm_at_the_limit_passes(probabilities: tuple[float, ...], policy: Policy) -> None:
    """An arm passes with exactly the least probability, when it is selected and when ranked."""
    assert select(probabilities, COSTS, policy).arm == 1
    assert ranking(probabilities, COSTS, policy)[0] == 1


@pytest.mark.parametrize(
    ("policy", "least"), [(Threshold(0.6), 0.6), (Drift(0.25), 0.5), (Utility(1.0), 0.0)]
)
def test_least_probability_follows_the_policy(policy: Policy, least: float) -> None:
    """An arm must reach theta, or come within delta of the most probable; utility sets none."""
    assert least_probability((0.125, 0.75, 0.25), policy) == least


def test_more_probable_arm_wins_at_equal_cost() -> None:
    """Of two arms that cost the same, the more probable one is chosen."""
    assert select((0.6, 0.8), (0.001, 0.001), Threshold(0.5)).arm == 1


POLICIES: list[Policy] = [Threshold(0.5), Threshold(0.9), Drift(0.1), Utility(0.5)]
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
    with pytest.raises(ValueError, match="needs a probability for every arm"):
        select(probabilities, [0.1] * len(probabilities), Threshold(0.5))


@pytest.mark.parametrize(
    "policy",
    [
        *(Threshold(0.5), Threshold(1.0), Drift(0.0), Drift(0.125)),
        *(Utility(0.002), Utility(5e-06), Verified(0.002), Verified(5e-06)),
    ],
)
def test_policy_text_round_trip(policy: Policy | Verified) -> None:
    """`str` and `parse_policy` are inverses."""
    assert parse_policy(str(policy)) == policy


def test_verified_policy_cannot_choose_once() -> None:
    """A policy that needs answers is refused if the arm must be chosen before any answer."""
    assert choose_once(Drift(0.1)) == Drift(0.1)
    with pytest.raises(PolicyError, match="needs the answers of models"):
        choose_once(Verified(0.002), param="--policy")


@pytest.mark.parametrize(
    "text", ["", "theta", "theta=", "theta=x", "theta=1.5", "theta=-0.1", "drift=nan", "cheap=1"]
)
def test_invalid_policy_is_quoted(text: str) -> None:
    """The error for an invalid rule quotes its text."""
    with pytest.raises(PolicyError) as caught:
        parse_policy(text, param="x-switchcraft-policy")
    assert repr(text) in str(caught.value)
    assert caught.value.param == "x-switchcraft-policy"


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
        ("theta=0.5=1", "'0.5=1' is not a number"),
        ("drift=1.5", "1.5 is outside 0 to 1; for 1.5%, write drift=0.015"),
        ("theta=87", "87 is outside 0 to 1; for 87%, write theta=0.87"),
        ("theta=-1", "-1 is outside 0 to 1"),
        ("drfit=0.1", "did you mean drift=0.1?"),
        ("acuracy=0.87", "did you mean accuracy=0.87?"),
        ("verified", "'' is not a number"),
        ("verified=-1", "the price -1 is not a number of USD"),
        ("verified=inf", "the price inf is not a number of USD"),
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


@pytest.mark.parametrize(
    "rule",
    [
        "theta=0",
        "theta=0.5",
        "theta=1",
        "drift=0",
        "drift=0.25",
        "utility=0",
        "utility=0.5",
        "utility=4",
    ],
)
def test_rows_are_selected_as_single_requests(rule: str) -> None:
    """Many rows at once get the arms that `select` chooses one by one, even if arms are equal."""
    rng = np.random.default_rng(0)
    probabilities = rng.integers(0, 5, (2_000, 4)) / 4  # Few values, so that arms are often equal.
    costs_usd = rng.integers(1, 4, (2_000, 4)) / 4
    policy = choose_once(parse_policy(rule))
    rows = zip(probabilities.tolist(), costs_usd.tolist(), strict=True)
    one_by_one = [select(row, cost, policy).arm for row, cost in rows]
    assert select_rows(probabilities, costs_usd, policy).tolist() == one_by_one


def test_rows_without_probabilities_are_refused() -> None:
    """A missing probability of any row is an error, as for a single request."""
    with pytest.raises(ValueError, match="needs a probability for every arm"):
        select_rows(np.array([[0.5, 0.5], [0.5, np.nan]]), np.ones((2, 2)), Drift(0.1))
