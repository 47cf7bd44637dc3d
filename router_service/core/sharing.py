"""Fair sharing of limited resources between callers. A caller is an API key.

Without keys, all requests have the caller None, which may use everything.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable

FAIR_SHARE = 3
"""An API key may use up to this many times the free capacity. One busy key then gets 3/4 of the
capacity, two busy keys get 3/7 each, and some capacity is always left for another key (Choudhury
and Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", 1998)."""


def has_share(caller: str | None, used: float, free: float) -> bool:
    """Return whether a caller that uses `used` of a resource may use more, if `free` is left."""
    return caller is None or used < FAIR_SHARE * free


class Places:
    """A fixed number of places, such as threads or connections, for which callers may wait.

    A free place goes to the waiting caller that has used least so far, by the measure `used`. It
    belongs to one event loop.
    """

    def __init__(
        self,
        count: int,
        used: Callable[[str | None], float] | None = None,
        *,
        leaves_room: bool,
    ) -> None:
        """Start with all places free.

        Without `used`, a caller's use is the number of its places. With `leaves_room`, no caller
        takes more than its fair share, so that there usually is a free place for another caller.
        """
        self.free = count
        self.taken: Counter[str | None] = Counter()
        self._used = used or self.taken.__getitem__
        self._leaves_room = leaves_room
        self._waiting: dict[str | None, deque[asyncio.Future[None]]] = {}
        """Those who wait, by caller. Among equals, the caller that was served longest ago is
        first."""

    @property
    def waiting(self) -> int:
        """How many wait for a place."""
        return sum(map(len, self._waiting.values()))

    def waiting_of(self, caller: str | None) -> int:
        """Return how many of a caller's wait for a place."""
        return len(self._waiting.get(caller, ()))

    def busiest(self) -> str | None:
        """Return the caller of whom most wait; None if nobody waits."""
        return max(self._waiting, key=self.waiting_of, default=None)

    def try_take(self, caller: str | None) -> bool:
        """Take a place if there is one for this caller; return whether it was taken."""
        if self._may_take(caller):
            self.free -= 1
            self.taken[caller] += 1
            return True
        return False

    async def take(self, caller: str | None) -> None:
        """Wait for a place and take it. A cancelled call takes none."""
        if self.try_take(caller):
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place in self._waiting.get(caller, ()):
                self._remove(caller, place)
            elif not place.cancelled() and place.exception() is None:  # assigned at this moment
                self.give_back(caller)
            raise

    def refuse_last(self, caller: str | None, error: Exception) -> None:
        """Let the last of a caller's that waits fail with an error."""
        place = self._waiting[caller][-1]
        self._remove(caller, place)
        if not place.done():
            place.set_exception(error)

    def give_back(self, caller: str | None) -> None:
        """Give a place back, and assign what is free to those who wait."""
        self.free += 1
        self.taken[caller] -= 1
        if not self.taken[caller]:
            del self.taken[caller]
        while ready := [waiting for waiting in self._waiting if self._may_take(waiting)]:
            served = min(ready, key=self._used)
            places = self._waiting.pop(served)
            place = places.popleft()
            if places:
                self._waiting[served] = places
            if not place.done():
                self.free -= 1
                self.taken[served] += 1
                place.set_result(None)

    def _may_take(self, caller: str | None) -> bool:
        if not self.free or not self._leaves_room:
            return self.free > 0
        return has_share(caller, self.taken[caller], self.free)

    def _remove(self, caller: str | None, place: asyncio.Future[None]) -> None:
        places = self._waiting[caller]
        places.remove(place)
        if not places:
            del self._waiting[caller]
