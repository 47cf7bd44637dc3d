"""How long to leave a store alone that has failed."""

from __future__ import annotations

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 5.0


class Backoff:
    """Pauses that double with every failure in a row, and end with the first success."""

    def __init__(self) -> None:
        self._pause_s = 0.0
        self._until_s = 0.0

    def is_pausing(self, now_s: float) -> bool:
        """Whether the store is to be left alone; `now_s` is of a clock that never goes back."""
        return now_s < self._until_s

    def failed(self, now_s: float) -> None:
        """Note a failure. Those of operations that were under way together count as one."""
        if self.is_pausing(now_s):
            return
        self._pause_s = min(LONGEST_PAUSE_S, self._pause_s * 2 or FIRST_PAUSE_S)
        self._until_s = now_s + self._pause_s

    def succeeded(self) -> None:
        """Note a success."""
        self._pause_s = self._until_s = 0.0
