"""Profiled tokens x list prices -> expected USD a request for each arm."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

TOKENS_PER_MTOK = 1_000_000

Positive = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Price(BaseModel):
    """A list price in USD per million tokens."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    input_usd_per_mtok: Positive
    output_usd_per_mtok: Positive

    def cost_usd(self, input_tokens: float, output_tokens: float) -> float:
        """Return what this many tokens cost."""
        return (
            input_tokens * self.input_usd_per_mtok + output_tokens * self.output_usd_per_mtok
        ) / TOKENS_PER_MTOK


class ArmProfile(BaseModel):
    """What an arm used and cost on the training queries (paper, appendix on the cost model).

    `input_tokens` and `output_tokens` are means a query, as the arm's own provider counted
    them; with the price they give the mean of the profiled cost, chattiness included.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    input_tokens: Positive
    output_tokens: Positive
    price: Price
    n: int = Field(ge=1, description="Training queries profiled.")

    def cost_usd(self, price: Price | None = None) -> float:
        """Return the expected cost of one request, at `price` where it is not the profile's."""
        return (price or self.price).cost_usd(self.input_tokens, self.output_tokens)
