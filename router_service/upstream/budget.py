"""Limits how many retries and fallbacks all requests together may cause."""

from __future__ import annotations

from collections.abc import Callable

SAVED_S = 10.0
"""Seconds of the floor that can be saved up: 20 retries by default."""


class RetryBudget:
    """Token bucket for retries: each request adds a share of a retry, each second adds the floor.

    Over any T seconds, `retries <= share * requests + floor_per_s * (T + SAVED_S)`. By default an
    outage therefore multiplies the load by 1.2 at most, plus 2 retries a second and 20 saved ones.
    Requests of the past cannot be saved up beyond the same 20. With a floor under 0.1 the bucket
    holds one retry, because it could never be spent otherwise. (Google SRE Book, chapter 22,
    "Retries".)
    """

    def __init__(self, share: float, floor_per_s: float, clock: Callable[[], float]) -> None:
        """Start with what `SAVED_S` seconds of the floor add up to."""
        self._share = share
        self._floor_per_s = floor_per_s
        self._clock = clock
        self._seen_s = clock()
        self._balance = SAVED_S * floor_per_s
        self._max_balance = max(1.0, self._balance)

    def earn(self) -> None:
        """Count a request."""
        self._balance = min(self._max_balance, self._balance + self._share)

    def spend(self) -> bool:
        """Take one retry from the budget; return False if the budget is empty."""
        now_s = self._clock()
        earned = (now_s - self._seen_s) * self._floor_per_s
        self._seen_s = now_s
        self._balance = min(self._max_balance, self._balance + earned)
        if self._balance < 1:
            return False
        self._balance -= 1
        return True
