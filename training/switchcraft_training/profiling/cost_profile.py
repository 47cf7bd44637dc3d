"""Recorded tokens and seconds x prices -> what each arm costs a request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from router_service.core.cost import SECONDS_PER_HOUR, TOKENS_PER_MTOK, ArmProfile, Price
from switchcraft_training.profiling.usage import Floats, Usage


def profile_arms(usage: Usage, prices: Mapping[str, Price]) -> dict[str, ArmProfile]:
    """Profile each arm over the training queries; `prices` are in the order of the columns.

    Queries of which what the price asks for was not counted, because the arm's provider failed,
    are left out: the profile says what an answer costs. Raises ValueError for an arm that has no
    other queries.
    """
    return {
        arm: _profile(arm, usage.columns([place]), price)
        for place, (arm, price) in enumerate(prices.items())
    }


def costs_usd(usage: Usage, prices: Mapping[str, Price]) -> Floats:
    """Return what every recorded answer cost, (queries, arms); an uncounted failure cost 0."""
    read = usage.input_tokens * _rates(price.input_usd_per_mtok for price in prices.values())
    written = usage.output_tokens * _rates(price.output_usd_per_mtok for price in prices.values())
    ran = usage.seconds * _rates(price.usd_per_hour for price in prices.values())
    tokens_usd: Floats = np.nan_to_num(read + written, nan=0.0) / TOKENS_PER_MTOK
    return tokens_usd + np.nan_to_num(ran, nan=0.0) / SECONDS_PER_HOUR


def _profile(arm: str, usage: Usage, price: Price) -> ArmProfile:
    """Profile one arm, (queries, 1)."""
    counted = _counted(usage, price)
    if not counted.any():
        raise ValueError(f"arm {arm!r} has no answer of which what its price asks for was counted")
    known = usage.take(np.flatnonzero(counted).tolist())
    return ArmProfile(
        input_tokens=_mean(known.input_tokens),
        output_tokens=_mean(known.output_tokens),
        seconds=_mean(known.seconds),
        price=price,
        n=int(counted.sum()),
    )


def _counted(usage: Usage, price: Price) -> NDArray[np.bool_]:
    """Tell the queries of an arm, (queries,), of which all that its price asks for is known."""
    tokens = usage.tokens_counted[:, 0] | (not price.has_token_prices)
    seconds = ~np.isnan(usage.seconds[:, 0]) | (not price.has_hourly_price)
    known: NDArray[np.bool_] = tokens & seconds
    return known


def _mean(counts: Floats) -> float:
    """Return the mean of what was counted; 0 where nothing was, which the price does not ask."""
    known = counts[~np.isnan(counts)]
    return float(known.mean()) if known.size else 0.0


def _rates(prices: Iterable[float | None]) -> Floats:
    """Return prices by arm, 0 where an arm is paid for by something else."""
    return np.array([0.0 if price is None else price for price in prices])
