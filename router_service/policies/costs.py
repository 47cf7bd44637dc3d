"""Costs: the prices of models, and what an arm uses and costs.

A cost in USD is the product of tokens or seconds and their prices. It is the expected cost of an
arm, or the actual cost of an answer.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from router_service.apis.usage import Usage
from router_service.core.values import Strict

TOKENS_PER_MTOK = 1_000_000
SECONDS_PER_HOUR = 3_600

Number = TypeVar("Number", float, NDArray[np.float64])
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Price(Strict):
    """Price of a model: USD per million tokens, USD per hour of its machine, or both added up.

    A missing price is unknown and never 0. Both token prices, the hourly price, or all three are
    required. Cached input and cache writes without their own price cost as much as other
    input. Reasoning without its own price costs as much as other output.
    """

    input_usd_per_mtok: NonNegative | None = None
    output_usd_per_mtok: NonNegative | None = None
    cached_input_usd_per_mtok: NonNegative | None = None
    cache_write_usd_per_mtok: NonNegative | None = None
    reasoning_usd_per_mtok: NonNegative | None = None
    long_prompts: tuple[LongPromptPrice, ...] = ()
    usd_per_hour: NonNegative | None = Field(
        None, description="Price of the machine that the arm runs on."
    )

    @model_validator(mode="after")
    def _check_complete(self) -> Price:
        if (self.input_usd_per_mtok is None) != (self.output_usd_per_mtok is None):
            raise ValueError("set both input_usd_per_mtok and output_usd_per_mtok, or neither")
        if not (self.has_token_prices or self.has_hourly_price):
            raise ValueError("set input_usd_per_mtok and output_usd_per_mtok, or usd_per_hour")
        starts = [longer.above_prompt_tokens for longer in self.long_prompts]
        if starts != sorted(starts):
            raise ValueError("sort long_prompts by above_prompt_tokens, from short to long")
        return self

    @property
    def has_token_prices(self) -> bool:
        """Whether a price per token is set."""
        return self.input_usd_per_mtok is not None

    @property
    def has_hourly_price(self) -> bool:
        """Whether a price per hour is set."""
        return self.usd_per_hour is not None

    def cost_usd(self, input_tokens: Number, output_tokens: Number, seconds: Number) -> Number:
        """Return the cost of tokens and seconds, ignoring prices for caching and reasoning."""
        input_usd = input_tokens * (self.input_usd_per_mtok or 0.0)
        output_usd = output_tokens * (self.output_usd_per_mtok or 0.0)
        time_usd = seconds * (self.usd_per_hour or 0.0)
        return (input_usd + output_usd) / TOKENS_PER_MTOK + time_usd / SECONDS_PER_HOUR

    def most_usd(self, input_tokens: float, output_tokens: float, seconds: float) -> float:
        """Return the most that so much may cost, whatever is cached, reasoning or a long prompt."""
        tokens_usd = 0.0
        for price in (self, *(longer.price for longer in self.long_prompts)):
            read = (price.input_usd_per_mtok, price.cached_input_usd_per_mtok)
            wrote = (price.output_usd_per_mtok, price.reasoning_usd_per_mtok)
            dearest_read = max(usd or 0.0 for usd in (*read, price.cache_write_usd_per_mtok))
            dearest_wrote = max(usd or 0.0 for usd in wrote)
            usd = input_tokens * dearest_read + output_tokens * dearest_wrote
            tokens_usd = max(tokens_usd, usd)
        time_usd = seconds * (self.usd_per_hour or 0.0)
        return tokens_usd / TOKENS_PER_MTOK + time_usd / SECONDS_PER_HOUR

    def cost_of(self, usage: Usage, seconds: float) -> float:
        """Return the cost of an answer with this usage and duration; each token is counted once."""
        price = self
        for longer in self.long_prompts:
            if usage.prompt_tokens > longer.above_prompt_tokens:
                price = longer.price
        read, wrote = price.input_usd_per_mtok or 0.0, price.output_usd_per_mtok or 0.0
        tokens_usd = 0.0
        for tokens, own, default in (
            (usage.uncached_tokens, read, read),
            (usage.cached_tokens, price.cached_input_usd_per_mtok, read),
            (usage.cache_write_tokens, price.cache_write_usd_per_mtok, read),
            (usage.completion_tokens - usage.reasoning_tokens, wrote, wrote),
            (usage.reasoning_tokens, price.reasoning_usd_per_mtok, wrote),
        ):
            tokens_usd += tokens * (default if own is None else own)
        time_usd = seconds * (self.usd_per_hour or 0.0)
        return tokens_usd / TOKENS_PER_MTOK + time_usd / SECONDS_PER_HOUR


class LongPromptPrice(Strict):
    """Price of all tokens of a request with more than `above_prompt_tokens` prompt tokens."""

    above_prompt_tokens: int = Field(ge=1)
    price: Price


class ArmProfile(Strict):
    """Usage and cost of an arm on the training queries (paper, appendix on the cost model).

    `input_tokens` and `output_tokens` are means over the queries, as the arm's provider counts
    them, and `seconds` is the mean duration. A value is 0 if it was not measured and has no price.
    Together with the price they give the mean profiled cost, including the effect of long answers.
    """

    input_tokens: NonNegative
    output_tokens: NonNegative
    seconds: NonNegative = 0.0
    price: Price
    n: int = Field(ge=1, description="Training queries profiled.")

    def cost_usd(self, price: Price | None = None) -> float:
        """Return the expected cost of one request at `price`, or else at the profile's price."""
        price = price or self.price
        return price.cost_usd(self.input_tokens, self.output_tokens, self.seconds)
