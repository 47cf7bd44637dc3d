"""Recorded token counts x list prices -> what each arm costs a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from router_service.core.cost import TOKENS_PER_MTOK, ArmProfile, Price

Counts = NDArray[np.float64]


def profile_arms(
    arms: Sequence[str], input_tokens: Counts, output_tokens: Counts, prices: Mapping[str, Price]
) -> dict[str, ArmProfile]:
    """Profile each arm over the training queries, (queries, arms) token counts each.

    Queries that an arm's provider failed on have no counts (NaN) and are left out: the profile
    says what an answer costs. Raises ValueError for an arm without any counted answer.
    """
    return {
        arm: _profile(arm, input_tokens[:, i], output_tokens[:, i], prices[arm])
        for i, arm in enumerate(arms)
    }


def costs_usd(
    arms: Sequence[str], input_tokens: Counts, output_tokens: Counts, prices: Mapping[str, Price]
) -> Counts:
    """Return what every recorded answer cost, (queries, arms); an uncounted failure cost 0."""
    rates_in = np.array([prices[arm].input_usd_per_mtok for arm in arms])
    rates_out = np.array([prices[arm].output_usd_per_mtok for arm in arms])
    costs: Counts = input_tokens * rates_in + output_tokens * rates_out
    return np.nan_to_num(costs, nan=0.0) / TOKENS_PER_MTOK


def _profile(arm: str, input_tokens: Counts, output_tokens: Counts, price: Price) -> ArmProfile:
    counted = ~(np.isnan(input_tokens) | np.isnan(output_tokens))
    if not counted.any():
        raise ValueError(f"arm {arm!r} has no answer with token counts")
    return ArmProfile(
        input_tokens=float(input_tokens[counted].mean()),
        output_tokens=float(output_tokens[counted].mean()),
        price=price,
        n=int(counted.sum()),
    )
