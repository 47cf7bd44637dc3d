"""Money as whole nanodollars, whose sums are exact in every order of additions."""

from __future__ import annotations

NANO = 1_000_000_000
"""Nanodollars in a dollar."""


def to_nusd(usd: float) -> int:
    """Return an amount in USD as whole nanodollars; every amount is rounded only once."""
    return round(usd * NANO)
