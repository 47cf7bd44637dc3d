"""Costs: tokens and seconds x prices -> USD, expected of an arm or paid for an answer."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from router_service.core.answers import Usage

TOKENS_PER_MTOK = 1_000_000
SECONDS_PER_HOUR = 3_600

NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Price(BaseModel):
    """Price of a model: USD per million tokens, USD per hour of its machine, or both added up.

    A missing price is unknown and never 0: there are both token prices, or the hourly price, or
    all three. Cached input and cache writes without a price of their own cost as much as other
    input, and reasoning as much as other output.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

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
            raise ValueError("name input_usd_per_mtok and output_usd_per_mtok, or neither")
        if not (self.has_token_prices or self.has_hourly_price):
            raise ValueError("name both prices of tokens, or usd_per_hour")
        starts = [longer.above_prompt_tokens for longer in self.long_prompts]
        if starts != sorted(starts):
            raise ValueError("name the prices of long prompts from short to long")
        return self

    @property
    def has_token_prices(self) -> bool:
        """Whether a price per token is set."""
        return self.input_usd_per_mtok is not None

    @property
    def has_hourly_price(self) -> bool:
        """Whether a price per hour is set."""
        return self.usd_per_hour is not None

    def cost_usd(self, input_tokens: float, output_tokens: float, seconds: float) -> float:
        """Return the cost of tokens and seconds if nothing is known about caching or reasoning."""
        input_usd = input_tokens * (self.input_usd_per_mtok or 0.0)
        output_usd = output_tokens * (self.output_usd_per_mtok or 0.0)
        time_usd = seconds * (self.usd_per_hour or 0.0)
        return (input_usd + output_usd) / TOKENS_PER_MTOK + time_usd / SECONDS_PER_HOUR

    def cost_of(self, usage: Usage, seconds: float) -> float:
        """Return the cost of an answer by its usage and time. Every token is counted once."""
        price = self
        for longer in self.long_prompts:
            if usage.prompt_tokens > longer.above_prompt_tokens:
                price = longer.price
        read, wrote = price.input_usd_per_mtok or 0.0, price.output_usd_per_mtok or 0.0
        parts = (
            (usage.uncached_tokens, read, read),
            (usage.cached_tokens, price.cached_input_usd_per_mtok, read),
            (usage.cache_write_tokens, price.cache_write_usd_per_mtok, read),
            (usage.completion_tokens - usage.reasoning_tokens, wrote, wrote),
            (usage.reasoning_tokens, price.reasoning_usd_per_mtok, wrote),
        )
        tokens_usd = sum(
            tokens * (default if own is None else own) for tokens, own, default in parts
        )
        time_usd = seconds * (self.usd_per_hour or 0.0)
        return tokens_usd / TOKENS_PER_MTOK + time_usd / SECONDS_PER_HOUR


class LongPromptPrice(BaseModel):
    """Price of all tokens of a request with more prompt tokens than this."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    above_prompt_tokens: int = Field(ge=1)
    price: Price


class ArmProfile(BaseModel):
    """Usage and cost of an arm on the training queries (paper, appendix on the cost model).

    `input_tokens` and `output_tokens` are means over the queries, as the arm's provider counts
    them, and `seconds` is the mean duration. A figure is 0 if it was not counted and has no price.
    With the price they give the mean profiled cost, including the effect of long answers.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    input_tokens: NonNegative
    output_tokens: NonNegative
    seconds: NonNegative = 0.0
    price: Price
    n: int = Field(ge=1, description="Training queries profiled.")

    def cost_usd(self, price: Price | None = None) -> float:
        """Return the expected cost of one request at `price`, or else at the profile's price."""
        price = price or self.price
        return price.cost_usd(self.input_tokens, self.output_tokens, self.seconds)
