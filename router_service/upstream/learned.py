"""What requests have taught, kept for a while."""

from __future__ import annotations

from collections.abc import Callable, Hashable

MAX_LEARNED = 1000
"""Clients choose paths; what was learned first is forgotten first."""


class Learned:
    """Facts that are forgotten after some seconds."""

    def __init__(self, kept_s: float, clock: Callable[[], float]) -> None:
        """Know nothing yet; `clock` is in seconds."""
        self._kept_s = kept_s
        self._clock = clock
        self._until_s: dict[Hashable, float] = {}

    def __contains__(self, fact: Hashable) -> bool:
        """Tell whether a fact is known now."""
        return bool(self._until_s) and self._until_s.get(fact, 0.0) > self._clock()

    def add(self, fact: Hashable) -> None:
        """Learn a fact, or learn it anew."""
        self._until_s.pop(fact, None)
        self._until_s[fact] = self._clock() + self._kept_s
        if len(self._until_s) > MAX_LEARNED:
            del self._until_s[next(iter(self._until_s))]
