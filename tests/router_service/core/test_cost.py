"""Prices: of tokens, of time, and never of what nobody named."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from router_service.core.answers import Usage
from router_service.core.cost import ArmProfile, LongPromptPrice, Price


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


FULL = Price(
    input_usd_per_mtok=10,
    output_usd_per_mtok=100,
    cached_input_usd_per_mtok=1,
    cache_write_usd_per_mtok=12,
    reasoning_usd_per_mtok=200,
)


def test_each_token_is_paid_once_at_its_own_price() -> None:
    """Cached and written tokens are taken out of the prompt, reasoning out of the answer."""
    usage = Usage(1_000, 100, cached_tokens=600, cache_write_tokens=300, reasoning_tokens=40)
    usd = (100 * 10 + 600 * 1 + 300 * 12 + 60 * 100 + 40 * 200) / 1_000_000
    assert FULL.cost_of(usage, seconds=0) == pytest.approx(usd)


def test_parts_without_a_price_cost_what_they_are_parts_of() -> None:
    """With the two list prices alone, an answer costs the same whatever was cached or thought."""
    price = Price(input_usd_per_mtok=10, output_usd_per_mtok=100, usd_per_hour=3.6)
    plain = price.cost_of(Usage(1_000, 100), seconds=2)
    assert plain == pytest.approx(0.02 + 0.002)
    parts = Usage(1_000, 100, cached_tokens=600, cache_write_tokens=9, reasoning_tokens=40)
    assert price.cost_of(parts, seconds=2) == pytest.approx(plain)


def test_a_long_prompt_changes_the_price_of_every_token() -> None:
    """At the limit the short price holds, one token above it the long one, for answers too."""
    long = LongPromptPrice(
        above_prompt_tokens=200_000, price=Price(input_usd_per_mtok=2, output_usd_per_mtok=3)
    )
    price = Price(input_usd_per_mtok=1, output_usd_per_mtok=1, long_prompts=(long,))
    assert price.cost_of(Usage(200_000, 1_000_000), 0) == pytest.approx(1.2)
    assert price.cost_of(Usage(200_001, 1_000_000), 0) == pytest.approx(3.400002)


def test_prices_of_long_prompts_stand_in_order() -> None:
    """Limits that fall are refused, for the last that fits is what counts."""
    limits = [{"above_prompt_tokens": n, "price": {"usd_per_hour": 1}} for n in (2, 1)]
    with pytest.raises(ValidationError, match="from short to long"):
        Price.model_validate({"usd_per_hour": 1, "long_prompts": limits})
