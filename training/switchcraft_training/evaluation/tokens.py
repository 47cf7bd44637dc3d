"""Token usage and cost by arm, and verbosity (section 4.8, appendix on token usage)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from router_service.core.artifact import Measure
from router_service.core.selection import Price
from switchcraft_training.data.table import Floats, Table
from switchcraft_training.evaluation.metrics import Estimate, bootstrap, mean_measure


@dataclass(frozen=True, slots=True)
class TokenUse:
    """An arm's mean tokens and costs per query, over the queries with token counts.

    `expected_cost_usd` is its cost if it wrote as many tokens as the average arm. `chattiness` is
    its actual cost divided by that.
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
        """The mean cost of a query."""
        return self.input_cost_usd + self.output_cost_usd


def token_use(table: Table, prices: Mapping[str, Price]) -> tuple[TokenUse, ...]:
    """Split each arm's cost into its parts, and sort the arms by rising cost.

    Omits arms without token counts. Also omits arms that are paid by the hour, because their tokens
    cost nothing.
    """
    counted = [table.arms[place] for place in np.flatnonzero(table.has_tokens.any(axis=0))]
    kept = [arm for arm in counted if not prices[arm].has_hourly_price]
    known = table.select_arms(kept)
    uses = [_use(known, column, prices[arm]) for column, arm in enumerate(kept)]
    return tuple(sorted(uses, key=lambda use: use.cost_usd))


def _use(table: Table, column: int, price: Price) -> TokenUse:
    rows = table.has_tokens[:, column]
    read, written = (
        mean_measure(counts[rows, column]) for counts in (table.input_tokens, table.output_tokens)
    )
    input_cost_usd = price.cost_usd(read.value, 0, seconds=0)
    output_cost_usd = price.cost_usd(0, written.value, seconds=0)
    total_usd = input_cost_usd + output_cost_usd
    average = float(np.nanmean(table.output_tokens, axis=0).mean())
    return TokenUse(
        arm=table.arms[column],
        price=price,
        input_tokens=read,
        output_tokens=written,
        input_cost_usd=input_cost_usd,
        output_cost_usd=output_cost_usd,
        input_share=input_cost_usd / total_usd if total_usd else 0.0,
        expected_cost_usd=price.cost_usd(read.value, average, seconds=0),
        chattiness=_chattiness(table, column, price),
    )


def _chattiness(table: Table, column: int, price: Price) -> Estimate | None:
    """Estimate the ratio of actual to expected cost; None for an arm that costs nothing."""
    counted = table.has_tokens
    arms = counted.shape[1]
    columns = [
        np.where(counted, table.input_tokens, 0),
        np.where(counted, table.output_tokens, 0),
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
