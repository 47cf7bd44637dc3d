"""Amounts of money as whole nanodollars, so that sums are exact in every order of additions."""

from __future__ import annotations

import math

NANO = 1_000_000_000
"""Nanodollars in a dollar."""

MAX_NUSD = 1_000_000 * NANO
"""Larger costs of one request count as a million dollars, because sums must fit into 64 bits."""


def to_nusd(usd: float) -> int:
    """Return the cost of one request in nanodollars.

    Each cost is rounded once, by this function, so that usage and budgets have equal sums.
    """
    if not math.isfinite(usd):
        return MAX_NUSD if usd > 0 else 0
    return min(round(usd * NANO), MAX_NUSD)
