"""Profiled tokens and seconds x prices -> expected USD a request for each arm."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

TOKENS_PER_MTOK = 1_000_000
SECONDS_PER_HOUR = 3_600

Positive = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Price(BaseModel):
    """What is paid: a list price in USD per million tokens, or the machine's in USD an hour.

    A price that is not named is unknown, and never 0: there are both prices of tokens, or the
    hour, or all three, which then add up.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    input_usd_per_mtok: Positive | None = None
    output_usd_per_mtok: Positive | None = None
    usd_per_hour: Positive | None = Field(None, description="Of the machine that the arm runs on.")

    @model_validator(mode="after")
    def _complete(self) -> Price:
        if (self.input_usd_per_mtok is None) != (self.output_usd_per_mtok is None):
            raise ValueError("name input_usd_per_mtok and output_usd_per_mtok, or neither")
        if not (self.counts_tokens or self.counts_seconds):
            raise ValueError("name both prices of tokens, or usd_per_hour")
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
        """Return what this many tokens and seconds cost."""
        read = input_tokens * (self.input_usd_per_mtok or 0.0)
        written = output_tokens * (self.output_usd_per_mtok or 0.0)
        ran = seconds * (self.usd_per_hour or 0.0)
        return (read + written) / TOKENS_PER_MTOK + ran / SECONDS_PER_HOUR


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
