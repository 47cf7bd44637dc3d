"""List prices and context windows of providers' models, from the data that `genai-prices` ships.

Only the address of a deployment, or the provider in a model id, identifies a provider. The name of
a model is not enough, because a private server may use any name, and its price has nothing to do
with the price of a provider's model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from genai_prices.data_snapshot import get_snapshot
from genai_prices.types import ModelPrice, TieredPrices

from router_service.policies.costs import LongPromptPrice, Price

_HALF_HOURS = 48

_LISTED_PROVIDERS: Mapping[str, str] = {
    "bedrock": "aws",
    "fireworks_ai": "fireworks",
    "gemini": "google",
    "moonshot": "moonshotai",
    "together_ai": "together",
    "vertex_ai": "google",
    "xai": "x-ai",
}
"""Names of providers in the price list where LiteLLM has other ones."""

_WITH_PATHS = frozenset({"bedrock", "vertex_ai"})
"""Providers whose names of models may begin with a region, an ARN or a publisher and a slash."""


@dataclass(frozen=True, slots=True)
class Listing:
    """A model's entry in the price list; None for values that the list does not have."""

    provider: str
    """The provider's name in the price list."""
    price: Price | None
    context_window_tokens: int | None


def look_up(base_url: str, upstream_model: str, at: datetime) -> Listing | None:
    """Return the listing of a model at a provider's address; None if it is not listed.

    Prices are those of the 24 hours from `at`. If a price depends on the hour, the highest one
    counts. Audio and image tokens are priced like text tokens.
    """
    return _find(upstream_model, None, base_url, at)


def look_up_id(model_id: str, at: datetime) -> Listing | None:
    """Return the listing of a model id such as `openai/gpt-5.2`; None if it is not listed.

    The provider is LiteLLM's name of it. Prices are those of `look_up`.
    """
    provider, slash, name = model_id.partition("/")
    name = name.rpartition("/")[2] if provider in _WITH_PATHS else name
    return _find(name, _LISTED_PROVIDERS.get(provider, provider), None, at) if slash else None


def look_up_name(name: str, at: datetime) -> Listing | None:
    """Return the listing of the provider that a model's name belongs to; None without one."""
    return _find(name, None, None, at) or _find(name.replace(".", "-"), None, None, at)


def _find(
    upstream_model: str, provider_id: str | None, base_url: str | None, at: datetime
) -> Listing | None:
    try:
        provider, model = get_snapshot().find_provider_model(
            upstream_model, None, provider_id, base_url
        )
    except LookupError:
        return None
    has_output = "embed" not in upstream_model.lower()
    times = (at + timedelta(minutes=30 * step) for step in range(_HALF_HOURS))
    known: list[Price] = []
    for listed in map(model.get_prices, times):
        base = _price_at(listed, 0, has_output=has_output)
        if base is None:
            continue
        tiered = (value for value in vars(listed).values() if isinstance(value, TieredPrices))
        starts = sorted({tier.start for value in tiered for tier in value.tiers})
        longer = ((start, _price_at(listed, start + 1, has_output=has_output)) for start in starts)
        long_prompts = tuple(
            LongPromptPrice(above_prompt_tokens=start, price=price)
            for start, price in longer
            if price is not None
        )
        known.append(base.model_copy(update={"long_prompts": long_prompts}))
    highest = max(known, key=lambda price: price.cost_usd(1, 1, 0), default=None)
    return Listing(provider.id, highest, model.context_window)


def _price_at(listed: ModelPrice, prompt_tokens: int, *, has_output: bool) -> Price | None:
    """Return the price for prompts of this length; None if its input or output price is unknown.

    A model without output, such as an embedding model, needs no output price.
    """

    def rate(name: str) -> float | None:
        value: Decimal | TieredPrices | None = getattr(listed, name)
        if isinstance(value, TieredPrices):
            passed = [tier.price for tier in value.tiers if prompt_tokens > tier.start]
            value = passed[-1] if passed else value.base
        return None if value is None else float(value)

    input_price, output_price = rate("input_mtok"), rate("output_mtok") if has_output else 0.0
    if input_price is None or output_price is None:
        return None
    return Price(
        input_usd_per_mtok=input_price,
        output_usd_per_mtok=output_price,
        cached_input_usd_per_mtok=rate("cache_read_mtok"),
        cache_write_usd_per_mtok=rate("cache_write_mtok"),
        reasoning_usd_per_mtok=rate("output_reasoning_mtok"),
    )
