"""A clock that tests move."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Clock:
    """A clock that stands still until a test moves it."""

    now_s: float = 1000.0

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.now_s
