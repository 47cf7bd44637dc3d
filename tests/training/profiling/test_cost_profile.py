"""Cost profile: means over what was counted, and the paper's formula."""

from __future__ import annotations

import numpy as np
import pytest

from router_service.core.cost import Price
from training.profiling.cost_profile import costs_usd, profile_arms

PRICES = {
    "a": Price(input_usd_per_mtok=2.5, output_usd_per_mtok=10),
    "b": Price(input_usd_per_mtok=0.3, output_usd_per_mtok=0.3),
}
INPUT = np.array([[100.0, 200.0], [300.0, np.nan]])
OUTPUT = np.array([[10.0, 50.0], [30.0, np.nan]])


def test_the_profile_is_the_mean_cost_of_what_was_answered() -> None:
    """Mean tokens x prices is the paper's profiled cost a query; failures are left out."""
    profile = profile_arms("ab", INPUT, OUTPUT, PRICES)
    assert profile["a"].cost_usd() == pytest.approx((200 * 2.5 + 20 * 10) / 1e6)
    assert (profile["b"].input_tokens, profile["b"].n) == (200, 1)
    assert profile["b"].cost_usd() == pytest.approx(250 * 0.3 / 1e6)


def test_another_price_replaces_the_profile_s() -> None:
    """An operator's own price applies to the profiled tokens."""
    profile = profile_arms("ab", INPUT, OUTPUT, PRICES)
    own = Price(input_usd_per_mtok=1, output_usd_per_mtok=0)
    assert profile["a"].cost_usd(own) == pytest.approx(200 / 1e6)


def test_an_arm_without_counts_is_refused() -> None:
    """A cost that nothing was counted for is an error, never 0."""
    with pytest.raises(ValueError, match="'b'"):
        profile_arms("ab", INPUT[1:], OUTPUT[1:], PRICES)


def test_recorded_costs() -> None:
    """Every answer costs its own tokens; an uncounted failure cost nothing."""
    expected = [[350e-6, 75e-6], [1050e-6, 0]]
    assert costs_usd("ab", INPUT, OUTPUT, PRICES) == pytest.approx(np.array(expected))
