"""Fair sharing of limited resources between API keys.

The module calls an API key a caller. Without keys, all requests have the caller None, which may use
everything.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable

FAIR_SHARE = 3
"""An API key may use up to this many times the free capacity. One busy key then gets 3/4 of the
capacity, two busy keys get 3/7 each, and some capacity is always left for another key (Choudhury
and Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", 1998)."""


def has_share(caller: str | None, used: float, free: float) -> bool:
    """Return whether a caller that uses `used` of a resource may use more, if `free` is left."""
    return caller is None or used < FAIR_SHARE * free


class FairSemaphore:
    """Semaphore whose waiting tasks are served by caller, not in the order of their arrival.

    A permit that becomes free goes to the caller that has used the resource least. The semaphore
    may be used by one event loop only.
    """

    def __init__(
        self,
        permits: int,
        used: Callable[[str | None], float] | None = None,
        *,
        leaves_room: bool,
    ) -> None:
        """Start with all permits free.

        `used` returns how much a caller has used the resource (default: the number of permits that
        it holds). With `leaves_room`, a caller never holds more than its fair share, so that there
        usually is a free permit for another caller.
        """
        self.free = permits
        self.held: dict[str | None, int] = defaultdict(int)
        """Permits held by each caller."""
        self._used = used or self.held.__getitem__
        self._leaves_room = leaves_room
        self._queues: dict[str | None, deque[asyncio.Future[None]]] = {}
        """Waiting tasks of each caller, first come first served. The caller that was served longest
        ago comes first."""

    @property
    def waiting(self) -> int:
        """Number of waiting tasks."""
        return sum(map(len, self._queues.values()))

    def waiting_of(self, caller: str | None) -> int:
        """Return the number of a caller's waiting tasks."""
        return len(self._queues.get(caller, ()))

    def longest_queue(self) -> str | None:
        """Return the caller with the most waiting tasks, or None if no task waits."""
        return max(self._queues, key=self.waiting_of, default=None)

    def try_acquire(self, caller: str | None) -> bool:
        """Acquire a permit without waiting; return whether that was possible."""
        if not self._may_acquire(caller):
            return False
        self.free -= 1
        self.held[caller] += 1
        return True

    async def acquire(self, caller: str | None) -> None:
        """Wait for a permit and acquire it. A call that is cancelled holds no permit."""
        if self.try_acquire(caller):
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(caller, deque()).append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter in self._queues.get(caller, ()):
                self._remove(caller, waiter)
            elif not waiter.cancelled() and waiter.exception() is None:
                self.release(caller)  # the permit was assigned just before the cancellation
            raise

    def refuse_last(self, caller: str | None, error: Exception) -> None:
        """Make the caller's newest waiting task raise an error."""
        waiter = self._queues[caller][-1]
        self._remove(caller, waiter)
        if not waiter.done():
            waiter.set_exception(error)

    def release(self, caller: str | None) -> None:
        """Release one of the caller's permits, and assign free permits to waiting tasks."""
        self.free += 1
        self.held[caller] -= 1
        if not self.held[caller]:
            del self.held[caller]
        while self._queues:
            ready = [waiting for waiting in self._queues if self._may_acquire(waiting)]
            if not ready:
                return
            served = min(ready, key=self._used)
            queue = self._queues.pop(served)
            waiter = queue.popleft()
            if queue:
                self._queues[served] = queue
            if not waiter.done():
                self.free -= 1
                self.held[served] += 1
                waiter.set_result(None)

    def _may_acquire(self, caller: str | None) -> bool:
        if not self.free or not self._leaves_room:
            return self.free > 0
        return has_share(caller, self.held[caller], self.free)

    def _remove(self, caller: str | None, waiter: asyncio.Future[None]) -> None:
        queue = self._queues[caller]
        queue.remove(waiter)
        if not queue:
            del self._queues[caller]
