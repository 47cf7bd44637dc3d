"""List prices and context windows of providers' models, from the data that `genai-prices` ships.

A provider is known by its address alone: a server of one's own may call its model what it will,
and what a namesake costs elsewhere says nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from genai_prices.data_snapshot import get_snapshot
from genai_prices.types import ModelPrice, TieredPrices

from router_service.core.cost import LongPromptPrice, Price

_HALF_HOURS = 48


@dataclass(frozen=True, slots=True)
class Listing:
    """What the library knows of a model; None where it does not say."""

    price: Price | None
    context_window_tokens: int | None


def look_up(base_url: str, upstream_model: str, at: datetime) -> Listing | None:
    """Return what is listed for a model at a provider's address; None for what is not listed.

    Prices are those of the day that begins at `at`; of those that depend on the hour, the dearest.
    Audio and images are not priced apart from other tokens.
    """
    try:
        _, model = get_snapshot().find_provider_model(upstream_model, None, None, base_url)
    except LookupError:
        return None
    writes = "embed" not in upstream_model.lower()
    times = (at + timedelta(minutes=30 * step) for step in range(_HALF_HOURS))
    prices = (_price(model.get_prices(time), writes=writes) for time in times)
    known = [price for price in prices if price is not None]
    dearest = max(known, key=lambda price: price.cost_usd(1, 1, 0), default=None)
    return Listing(dearest, model.context_window)


def _price(listed: ModelPrice, *, writes: bool) -> Price | None:
    """Return what is listed as a price; a model that does not write, embeds, and has no output."""
    base = _rates(listed, 0, writes=writes)
    if base is None:
        return None
    longer = (
        (start, _rates(listed, start + 1, writes=writes)) for start in sorted(set(_starts(listed)))
    )
    return base.model_copy(
        update={
            "long_prompts": tuple(
                LongPromptPrice(above_prompt_tokens=start, price=price)
                for start, price in longer
                if price is not None
            )
        }
    )


def _rates(listed: ModelPrice, prompt_tokens: int, *, writes: bool) -> Price | None:
    """Return the price of a request whose prompt has so many tokens; None where one is missing."""

    def rate(name: str) -> float | None:
        return _rate(getattr(listed, name), prompt_tokens)

    read, written = rate("input_mtok"), rate("output_mtok") if writes else 0.0
    if read is None or written is None:
        return None
    return Price(
        input_usd_per_mtok=read,
        output_usd_per_mtok=written,
        cached_input_usd_per_mtok=rate("cache_read_mtok"),
        cache_write_usd_per_mtok=rate("cache_write_mtok"),
        reasoning_usd_per_mtok=rate("output_reasoning_mtok"),
    )


def _rate(value: Decimal | TieredPrices | None, prompt_tokens: int) -> float | None:
    if isinstance(value, TieredPrices):
        passed = [tier.price for tier in value.tiers if prompt_tokens > tier.start]
        value = passed[-1] if passed else value.base
    return None if value is None else float(value)


def _starts(listed: ModelPrice) -> Iterator[int]:
    for value in vars(listed).values():
        if isinstance(value, TieredPrices):
            yield from (tier.start for tier in value.tiers)
