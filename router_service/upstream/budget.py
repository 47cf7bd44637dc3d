"""How many tries beyond the first all requests together may have."""

from __future__ import annotations

from collections.abc import Callable

MAX_SAVED = 100.0
"""Tries that a quiet time can save up for a bad one."""


class RetryBudget:
    """Each request earns a share of a try, and each further try costs a whole one.

    So an outage multiplies the load by 1 + share at most, however many retries each request could
    have (Google SRE Book, chapter 22, "Retries").
    """

    def __init__(self, share: float, floor_per_s: float, clock: Callable[[], float]) -> None:
        """Start with ten seconds' worth of the floor."""
        self._share = share
        self._floor_per_s = floor_per_s
        self._clock = clock
        self._seen_s = clock()
        self._balance = min(MAX_SAVED, 10 * floor_per_s)

    def earn(self) -> None:
        """Count a request."""
        self._balance = min(MAX_SAVED, self._balance + self._share)

    def spend(self) -> bool:
        """Take a further try, or say that there is none."""
        now_s = self._clock()
        earned = (now_s - self._seen_s) * self._floor_per_s
        self._seen_s = now_s
        self._balance = min(MAX_SAVED, self._balance + earned)
        if self._balance < 1:
            return False
        self._balance -= 1
        return True
