"""Prices: of tokens, of time, and never of what nobody named."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from router_service.core.cost import ArmProfile, Price


@pytest.mark.parametrize(
    "named", [{}, {"input_usd_per_mtok": 1}, {"output_usd_per_mtok": 1, "usd_per_hour": 1}]
)
def test_a_price_that_is_missing_is_an_error(named: dict[str, float]) -> None:
    """Half a price of tokens, or none of anything, is refused rather than taken for 0."""
    with pytest.raises(ValidationError, match="name "):
        Price.model_validate(named)


def test_tokens_and_time_are_paid() -> None:
    """A million tokens cost their price, an hour its own; a price of both adds up."""
    tokens = Price(input_usd_per_mtok=2, output_usd_per_mtok=8)
    assert tokens.cost_usd(1_000_000, 500_000, seconds=3600) == pytest.approx(6)
    hour = Price(usd_per_hour=1.2)
    assert hour.cost_usd(1_000_000, 500_000, seconds=1800) == pytest.approx(0.6)
    both = Price(input_usd_per_mtok=2, output_usd_per_mtok=8, usd_per_hour=1.2)
    assert both.cost_usd(1_000_000, 500_000, seconds=1800) == pytest.approx(6.6)


def test_a_profile_of_time_costs_what_the_machine_does() -> None:
    """By the hour at its own price, by the token at an operator's."""
    hour = Price(usd_per_hour=3.6)
    profile = ArmProfile(input_tokens=100, output_tokens=10, seconds=2, price=hour, n=1)
    assert profile.cost_usd() == pytest.approx(0.002)
    own = Price(input_usd_per_mtok=1, output_usd_per_mtok=1)
    assert profile.cost_usd(own) == pytest.approx(110e-6)


def test_a_profile_from_before_time_was_counted_is_read() -> None:
    """A manifest without seconds and hours costs what it did."""
    price = {"input_usd_per_mtok": 1.0, "output_usd_per_mtok": 2.0}
    row = {"input_tokens": 10.0, "output_tokens": 5.0, "price": price, "n": 3}
    assert ArmProfile.model_validate(row).cost_usd() == pytest.approx(20e-6)
