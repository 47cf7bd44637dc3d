"""Profiled tokens and seconds x prices -> expected USD a request for each arm."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from router_service.core.answers import Usage

TOKENS_PER_MTOK = 1_000_000
SECONDS_PER_HOUR = 3_600

Positive = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Price(BaseModel):
    """What is paid: a list price in USD per million tokens, or the machine's in USD an hour.

    A price that is not named is unknown, and never 0: there are both prices of tokens, or the
    hour, or all three, which then add up. Cached input, cache writes and reasoning that have no
    price of their own cost what the input or the output does that they are part of.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    input_usd_per_mtok: Positive | None = None
    output_usd_per_mtok: Positive | None = None
    cached_input_usd_per_mtok: Positive | None = None
    cache_write_usd_per_mtok: Positive | None = None
    reasoning_usd_per_mtok: Positive | None = None
    long_prompts: tuple[LongPromptPrice, ...] = ()
    usd_per_hour: Positive | None = Field(None, description="Of the machine that the arm runs on.")

    @model_validator(mode="after")
    def _complete(self) -> Price:
        if (self.input_usd_per_mtok is None) != (self.output_usd_per_mtok is None):
            raise ValueError("name input_usd_per_mtok and output_usd_per_mtok, or neither")
        if not (self.counts_tokens or self.counts_seconds):
            raise ValueError("name both prices of tokens, or usd_per_hour")
        starts = [longer.above_prompt_tokens for longer in self.long_prompts]
        if starts != sorted(starts):
            raise ValueError("name the prices of long prompts from short to long")
        return self

    @property
    def counts_tokens(self) -> bool:
        """Whether tokens cost anything that is known here."""
        return self.input_usd_per_mtok is not None

    @property
    def counts_seconds(self) -> bool:
        """Whether time does."""
        return self.usd_per_hour is not None

    def cost_usd(self, input_tokens: float, output_tokens: float, seconds: float) -> float:
        """Return what this many tokens and seconds cost, of which no more is known."""
        read = input_tokens * (self.input_usd_per_mtok or 0.0)
        written = output_tokens * (self.output_usd_per_mtok or 0.0)
        ran = seconds * (self.usd_per_hour or 0.0)
        return (read + written) / TOKENS_PER_MTOK + ran / SECONDS_PER_HOUR

    def cost_of(self, usage: Usage, seconds: float) -> float:
        """Return what an answer cost by its own usage, no token counted twice, and its time."""
        paid = self
        for longer in self.long_prompts:
            if usage.prompt_tokens > longer.above_prompt_tokens:
                paid = longer.price
        ran = seconds * (self.usd_per_hour or 0.0)
        return paid._tokens_usd(usage) + ran / SECONDS_PER_HOUR

    def _tokens_usd(self, usage: Usage) -> float:
        read, wrote = self.input_usd_per_mtok or 0.0, self.output_usd_per_mtok or 0.0
        parts = (
            (usage.uncached_tokens, read),
            (usage.cached_tokens, _or(self.cached_input_usd_per_mtok, read)),
            (usage.cache_write_tokens, _or(self.cache_write_usd_per_mtok, read)),
            (usage.completion_tokens - usage.reasoning_tokens, wrote),
            (usage.reasoning_tokens, _or(self.reasoning_usd_per_mtok, wrote)),
        )
        return sum(tokens * usd_per_mtok for tokens, usd_per_mtok in parts) / TOKENS_PER_MTOK


class LongPromptPrice(BaseModel):
    """The price of every token of a request whose prompt is longer than this."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    above_prompt_tokens: int = Field(ge=1)
    price: Price


def _or(usd_per_mtok: float | None, otherwise: float) -> float:
    return otherwise if usd_per_mtok is None else usd_per_mtok


class ArmProfile(BaseModel):
    """What an arm used and cost on the training queries (paper, appendix on the cost model).

    `input_tokens` and `output_tokens` are means a query, as the arm's own provider counted
    them, and `seconds` how long it took; 0 where the price does not ask and nobody counted. With
    the price they give the mean of the profiled cost, chattiness included.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    input_tokens: Positive
    output_tokens: Positive
    seconds: Positive = 0.0
    price: Price
    n: int = Field(ge=1, description="Training queries profiled.")

    def cost_usd(self, price: Price | None = None) -> float:
        """Return the expected cost of one request, at `price` where it is not the profile's."""
        paid = price or self.price
        return paid.cost_usd(self.input_tokens, self.output_tokens, self.seconds)
