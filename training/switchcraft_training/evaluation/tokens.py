"""Tokens, where the money goes, and who talks too much (section 4.8, appendix on token usage)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from router_service.core.artifact import Measure
from router_service.core.cost import Price
from switchcraft_training.evaluation.evaluate import Floats
from switchcraft_training.evaluation.metrics import Estimate, bootstrap, mean_measure
from switchcraft_training.profiling.usage import Usage


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


def token_use(
    arms: tuple[str, ...], usage: Usage, prices: Mapping[str, Price]
) -> tuple[TokenUse, ...]:
    """Take apart what each arm costs, by rising cost.

    An arm that was never counted is left out, and so is one that is paid by the hour: its tokens
    cost nothing, however many it writes.
    """
    by_hour = np.array([prices[arm].has_hourly_price for arm in arms])
    kept = np.flatnonzero(usage.tokens_counted.any(axis=0) & ~by_hour).tolist()
    known = usage.columns(kept)
    uses = [_use(known, column, arms[place], prices) for column, place in enumerate(kept)]
    return tuple(sorted(uses, key=lambda use: use.cost_usd))


def _use(usage: Usage, column: int, arm: str, prices: Mapping[str, Price]) -> TokenUse:
    rows = usage.tokens_counted[:, column]
    read, written = (
        mean_measure(counts[rows, column]) for counts in (usage.input_tokens, usage.output_tokens)
    )
    price = prices[arm]
    input_cost_usd = price.cost_usd(read.value, 0, seconds=0)
    output_cost_usd = price.cost_usd(0, written.value, seconds=0)
    total_usd = input_cost_usd + output_cost_usd
    average = float(np.nanmean(usage.output_tokens, axis=0).mean())
    return TokenUse(
        arm=arm,
        price=price,
        input_tokens=read,
        output_tokens=written,
        input_cost_usd=input_cost_usd,
        output_cost_usd=output_cost_usd,
        input_share=input_cost_usd / total_usd if total_usd else 0.0,
        expected_cost_usd=price.cost_usd(read.value, average, seconds=0),
        chattiness=_chattiness(usage, column, price),
    )


def _chattiness(usage: Usage, column: int, price: Price) -> Estimate | None:
    """Estimate actual over expected cost; None for an arm that costs nothing."""
    counted = usage.tokens_counted
    arms = counted.shape[1]
    columns = [
        np.where(counted, usage.input_tokens, 0),
        np.where(counted, usage.output_tokens, 0),
        counted.astype(np.float64),
    ]

    def ratio(means: Floats) -> float:
        total_in, total_out, share = means.reshape(3, arms)
        with np.errstate(invalid="ignore", divide="ignore"):
            read, written = total_in / share, total_out / share
        actual_usd = price.cost_usd(read[column], written[column], seconds=0)
        expected_usd = price.cost_usd(read[column], float(np.nanmean(written)), seconds=0)
        return actual_usd / expected_usd if expected_usd > 0 else float("nan")

    return bootstrap(np.hstack(columns), ratio)
