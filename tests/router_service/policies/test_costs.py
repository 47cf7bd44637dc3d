"""Prices, profiles, and what answers cost."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from router_service.apis.usage import Usage
from router_service.policies.costs import LongPromptPrice, Price


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


def test_long_prompt_changes_all_prices() -> None:
    """The long price applies above the limit, and to the tokens of the answer too."""
    long = LongPromptPrice(
        above_prompt_tokens=200_000, price=Price(input_usd_per_mtok=2, output_usd_per_mtok=3)
    )
    price = Price(input_usd_per_mtok=1, output_usd_per_mtok=1, long_prompts=(long,))
    assert price.cost_of(Usage(200_000, 1_000_000), 0) == pytest.approx(1.2)
    assert price.cost_of(Usage(200_001, 1_000_000), 0) == pytest.approx(3.400002)
