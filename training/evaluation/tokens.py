"""Tokens, where the money goes, and who talks too much (section 4.8, appendix on token usage)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from router_service.core.artifact import Measure
from router_service.core.cost import TOKENS_PER_MTOK, Price
from training.evaluation.evaluate import Floats
from training.evaluation.experiment import Tokens
from training.evaluation.metrics import Estimate, bootstrap, mean_measure


@dataclass(frozen=True, slots=True)
class TokenUse:
    """An arm's tokens and costs a query, means over the queries that were counted.

    `chattiness` is its cost over the cost if it wrote as many tokens as arms do on average;
    `expected_cost_usd` is the latter.
    """

    arm: str
    price: Price
    input_tokens: Measure
    output_tokens: Measure
    input_cost_usd: float
    output_cost_usd: float
    input_share: float
    expected_cost_usd: float
    chattiness: Estimate | None

    @property
    def cost_usd(self) -> float:
        """What a query costs."""
        return self.input_cost_usd + self.output_cost_usd


def token_use(arms: tuple[str, ...], tokens: Tokens) -> tuple[TokenUse, ...]:
    """Take apart what each arm costs, by rising cost; an arm that was never counted is left out."""
    counted = ~np.isnan(tokens.input_tokens + tokens.output_tokens)
    kept = np.flatnonzero(counted.any(axis=0))
    known = Tokens(tokens.input_tokens[:, kept], tokens.output_tokens[:, kept], tokens.prices)
    uses = [_use(known, column, arms[arm]) for column, arm in enumerate(kept)]
    return tuple(sorted(uses, key=lambda use: use.cost_usd))


def _use(tokens: Tokens, column: int, arm: str) -> TokenUse:
    rows = ~np.isnan(tokens.input_tokens[:, column] + tokens.output_tokens[:, column])
    read, written = (
        mean_measure(counts[rows, column]) for counts in (tokens.input_tokens, tokens.output_tokens)
    )
    price = tokens.prices[arm]
    input_cost_usd = price.cost_usd(read.value, 0)
    output_cost_usd = price.cost_usd(0, written.value)
    total_usd = input_cost_usd + output_cost_usd
    average = float(np.nanmean(tokens.output_tokens, axis=0).mean())
    return TokenUse(
        arm=arm,
        price=price,
        input_tokens=read,
        output_tokens=written,
        input_cost_usd=input_cost_usd,
        output_cost_usd=output_cost_usd,
        input_share=input_cost_usd / total_usd if total_usd else 0.0,
        expected_cost_usd=price.cost_usd(read.value, average),
        chattiness=_chattiness(tokens, column, price),
    )


def _chattiness(tokens: Tokens, column: int, price: Price) -> Estimate | None:
    """Estimate actual over expected cost; None for an arm that costs nothing."""
    counted = ~np.isnan(tokens.input_tokens + tokens.output_tokens)
    arms = counted.shape[1]
    columns = [
        np.where(counted, tokens.input_tokens, 0),
        np.where(counted, tokens.output_tokens, 0),
        counted.astype(np.float64),
    ]

    def ratio(means: Floats) -> float:
        total_in, total_out, share = means.reshape(3, arms)
        with np.errstate(invalid="ignore", divide="ignore"):
            read, written = total_in / share, total_out / share
        rates = price.input_usd_per_mtok, price.output_usd_per_mtok
        actual = read[column] * rates[0] + written[column] * rates[1]
        expected = read[column] * rates[0] + np.nanmean(written) * rates[1]
        return float(actual / expected) if expected > 1 / TOKENS_PER_MTOK else float("nan")

    return bootstrap(np.hstack(columns), ratio)
