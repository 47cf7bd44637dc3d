"""How much the gateway does at a time: what is beyond it is refused at once, not queued for ever.

A queue without a bound answers everyone late, and most of them after they have given up. What is
refused early can be tried elsewhere.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

import anyio
import anyio.to_thread

from router_service.core.errors import OverloadedError

P = ParamSpec("P")
T = TypeVar("T")


class Slots:
    """The requests in flight, in all and by caller."""

    def __init__(self, max_requests: int, max_requests_per_caller: int | None = None) -> None:
        """Hold none yet; a caller is a key, and without keys there is one."""
        self._max_requests = max_requests
        self._max_per_caller = max_requests_per_caller
        self._by_caller: Counter[str | None] = Counter()
        self.in_flight = 0

    @contextmanager
    def slot(self, caller: str | None) -> Iterator[None]:
        """Count a request for as long as the block runs; raises OverloadedError."""
        self._check(caller)
        self.in_flight += 1
        self._by_caller[caller] += 1
        try:
            yield
        finally:
            self.in_flight -= 1
            self._by_caller[caller] -= 1
            if not self._by_caller[caller]:
                del self._by_caller[caller]

    def _check(self, caller: str | None) -> None:
        if self.in_flight >= self._max_requests:
            problem = f"The gateway is answering {self._max_requests} requests, its limit."
            raise OverloadedError("overloaded", problem)
        limit = self._max_per_caller
        if limit is not None and self._by_caller[caller] >= limit:
            problem = f"This key has {limit} requests in flight, its limit."
            raise OverloadedError("too_many_requests", problem, is_callers=True)


class DecisionQueue:
    """Runs decisions in threads, with a bounded number of them waiting for a bounded time."""

    def __init__(self, threads: int, max_waiting: int, max_wait_s: float) -> None:
        """Run `threads` at a time; `max_waiting` more wait, no longer than `max_wait_s`."""
        self._free = asyncio.Semaphore(threads)
        self._limiter = anyio.CapacityLimiter(threads)
        self._max_waiting = max_waiting
        self._max_wait_s = max_wait_s
        self.waiting = 0
        """How many wait for a thread."""

    async def run(self, decide: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what a function returns in a thread; raises OverloadedError before it is run."""
        await self._acquire()
        try:
            # As many threads as permits: nothing waits here but what was cancelled and still runs.
            return await anyio.to_thread.run_sync(
                lambda: decide(*args, **kwargs), limiter=self._limiter
            )
        finally:
            self._free.release()

    async def _acquire(self) -> None:
        if self._free.locked() and self.waiting >= self._max_waiting:
            raise OverloadedError("decisions_queued", "Too many requests wait for a decision.")
        self.waiting += 1
        try:
            async with asyncio.timeout(self._max_wait_s):
                await self._free.acquire()
        except TimeoutError as exc:
            problem = f"No decision was made within {self._max_wait_s:g} s."
            raise OverloadedError("decisions_queued", problem) from exc
        finally:
            self.waiting -= 1
