"""The shared table, costs of recorded answers, and cost profiles."""

from __future__ import annotations

import numpy as np
import pytest

from router_service.policies.costs import Price
from switchcraft_training.data.table import (
    Floats,
    Table,
    concatenate,
    costs_usd,
    profile_arms,
)
from switchcraft_training.records import Example

NAN = np.nan
LAYERS = ("correct", "cost_usd", "input_tokens", "output_tokens", "seconds", "attempts")


def example(name: str) -> Example:
    """Return an example with this id."""
    return Example(name, "c", {})


TABLE = Table(
    examples=(example("x"), example("y")),
    arms=("a", "b"),
    correct=np.array([[1.0, 0.5], [0.0, NAN]]),
    input_tokens=np.array([[100.0, 200.0], [300.0, NAN]]),
    output_tokens=np.array([[10.0, 50.0], [30.0, NAN]]),
    attempts=np.array([[1.0, 2.0], [1.0, 0.0]]),
    groups=np.array([7, 9]),
    expected_calls=np.array([1.0, NAN]),
    is_measured=np.array([True, False]),
)


def test_taken_rows_joined_again_are_the_table() -> None:
    """All layers and columns are preserved; masks and indices select the same rows."""
    mask = TABLE.take(np.array([True, False]))
    whole = concatenate([mask, TABLE.take([1])])
    assert whole.examples == TABLE.examples
    for name in (*LAYERS, "groups", "folds", "expected_calls", "is_measured"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(TABLE, name))
    assert TABLE.take([1, 0, 1]).groups.tolist() == [9, 7, 9]
    assert len(TABLE.take([])) == 0


PRICES = {
    "a": Price(input_usd_per_mtok=2.5, output_usd_per_mtok=10),
    "b": Price(input_usd_per_mtok=0.3, output_usd_per_mtok=0.3),
}


def used(input_tokens: Floats, output_tokens: Floats, seconds: Floats) -> Table:
    """Return a table of answers that used these tokens and seconds."""
    examples = tuple(Example(str(i), "", {}) for i in range(len(input_tokens)))
    return Table(
        examples,
        ("a", "b"),
        correct=np.ones_like(input_tokens),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        seconds=seconds,
    )


USAGE = used(
    input_tokens=np.array([[100.0, 200.0], [300.0, NAN]]),
    output_tokens=np.array([[10.0, 50.0], [30.0, NAN]]),
    seconds=np.full((2, 2), NAN),
)
BY_HOUR = {"a": Price(usd_per_hour=1.2), "b": PRICES["b"]}
TIMED = used(
    input_tokens=np.array([[NAN, 200.0], [NAN, 400.0], [NAN, NAN]]),
    output_tokens=np.array([[NAN, 50.0], [NAN, 50.0], [NAN, NAN]]),
    seconds=np.array([[3.0, NAN], [9.0, NAN], [NAN, NAN]]),
)
"""Only time is known for one arm and only tokens for the other; both failed the last query."""


def test_the_profile_is_the_mean_cost_of_what_was_answered() -> None:
    """Mean tokens times price is the paper's profiled cost per query; failures are left out."""
    profile = profile_arms(USAGE, PRICES)
    assert profile["a"].cost_usd() == pytest.approx((200 * 2.5 + 20 * 10) / 1e6)
    assert (profile["b"].input_tokens, profile["b"].n) == (200, 1)
    assert profile["b"].cost_usd() == pytest.approx(250 * 0.3 / 1e6)


def test_an_arm_without_counts_is_refused() -> None:
    """A cost without recorded usage is an error, never 0."""
    with pytest.raises(ValueError, match="'b'"):
        profile_arms(USAGE.take([1]), PRICES)
    with pytest.raises(ValueError, match="'a'"):
        profile_arms(USAGE, BY_HOUR)


def test_time_costs_what_the_machine_does() -> None:
    """A price per hour needs no tokens, a price per token no time; a failure costs nothing."""
    expected = [[3 * 1.2 / 3600, 75e-6], [9 * 1.2 / 3600, 135e-6], [0, 0]]
    assert costs_usd(TIMED, BY_HOUR) == pytest.approx(np.array(expected))
    profile = profile_arms(TIMED, BY_HOUR)
    assert (profile["a"].seconds, profile["a"].n) == (6, 2)
    assert (profile["b"].input_tokens, profile["b"].seconds, profile["b"].n) == (300, 0, 2)
    assert profile["a"].cost_usd() == pytest.approx(6 * 1.2 / 3600)
