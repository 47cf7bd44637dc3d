"""Costs of recorded answers, and the cost profile of an artifact."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from router_service.core.selection import SECONDS_PER_HOUR, TOKENS_PER_MTOK, ArmProfile, Price
from switchcraft_training.data.table import Floats, Table


def costs_usd(table: Table, prices: Mapping[str, Price]) -> Floats:
    """Return the cost of every recorded answer, (rows, arms); `prices` must include every arm.

    A failed request without usage counts costs 0.
    """
    arms = [prices[arm] for arm in table.arms]
    read = table.input_tokens * np.array([price.input_usd_per_mtok or 0.0 for price in arms])
    written = table.output_tokens * np.array([price.output_usd_per_mtok or 0.0 for price in arms])
    ran = table.seconds * np.array([price.usd_per_hour or 0.0 for price in arms])
    tokens_usd: Floats = np.nan_to_num(read + written, nan=0.0) / TOKENS_PER_MTOK
    hours_usd: Floats = np.nan_to_num(ran, nan=0.0) / SECONDS_PER_HOUR
    return tokens_usd + hours_usd


def profile_arms(table: Table, prices: Mapping[str, Price]) -> dict[str, ArmProfile]:
    """Return each arm's mean usage at its price; `prices` must include every arm.

    The profile is the cost of an answer, so it omits failed requests, which have no usage counts.
    Raises ValueError if an arm has no request with all the counts that its price needs.
    """
    return {arm: _profile_arm(table, column, prices[arm]) for column, arm in enumerate(table.arms)}


def _profile_arm(table: Table, column: int, price: Price) -> ArmProfile:
    has_seconds = ~np.isnan(table.seconds[:, column])
    is_counted = (table.has_tokens[:, column] | (not price.has_token_prices)) & (
        has_seconds | (not price.has_hourly_price)
    )
    if not is_counted.any():
        problem = "has no recorded answer with the tokens or seconds that its price needs"
        raise ValueError(f"arm {table.arms[column]!r} {problem}")

    def mean(layer: Floats) -> float:
        """Return the mean of the known values, or 0 if the price does not need them."""
        values = layer[is_counted, column]
        known = values[~np.isnan(values)]
        return float(known.mean()) if known.size else 0.0

    return ArmProfile(
        input_tokens=mean(table.input_tokens),
        output_tokens=mean(table.output_tokens),
        seconds=mean(table.seconds),
        price=price,
        n=int(is_counted.sum()),
    )
