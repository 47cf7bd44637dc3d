"""Limits on concurrent work, and the graceful shutdown. Refusals are sent at once.

With an unbounded queue, every client gets its answer late, and most clients have given up by then.
A client that is refused early can try elsewhere.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import ParamSpec, Self, TypeVar

from router_service.core.errors import OverloadedError

P = ParamSpec("P")
T = TypeVar("T")


FAIR_SHARE = 3
"""An API key may use up to this many times the free capacity. One busy key then gets 3/4 of the
capacity, two busy keys get 3/7 each, and some capacity is always left for another key (Choudhury
and Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", 1998)."""


SHUTTING_DOWN = "shutting_down"
"""Reason, in metrics and errors, of requests that are refused during the shutdown."""


class Slots:
    """Requests in flight and the memory that they hold, in total and by caller.

    A caller is an API key. Without keys, all requests have the caller None, which may use the whole
    capacity.
    """

    def __init__(
        self,
        max_requests: int,
        max_requests_per_caller: int | None = None,
        max_bytes: int = 256 * 2**20,
    ) -> None:
        """Start with all slots free."""
        self._max_requests = max_requests
        self._max_per_caller = max_requests_per_caller
        self._by_caller: Counter[str | None] = Counter()
        self.in_flight = 0
        self.max_bytes = max_bytes
        self.held_bytes = 0
        self.held_bytes_by_caller: Counter[str | None] = Counter()

    def slot(self, caller: str | None) -> Slot:
        """Return a context that counts a request; it raises OverloadedError if no slot is free."""
        return Slot(self, caller)

    def take(self, caller: str | None) -> None:
        """Count a request; raises OverloadedError if no slot is free."""
        free = self._max_requests - self.in_flight
        if free <= 0:
            problem = f"The gateway is at its limit of {self._max_requests} requests in flight."
            raise OverloadedError("overloaded", problem)
        limit = self._max_per_caller
        if limit is None and caller is not None:
            limit = FAIR_SHARE * free
        if limit is not None and self._by_caller[caller] >= limit:
            problem = f"This key is at its limit of {self._by_caller[caller]} requests in flight."
            raise OverloadedError("too_many_requests", problem, is_callers=True)
        self.in_flight += 1
        self._by_caller[caller] += 1

    def give_back(self, caller: str | None) -> None:
        """Count a request no longer."""
        self.in_flight -= 1
        self._by_caller[caller] -= 1
        if not self._by_caller[caller]:
            del self._by_caller[caller], self.held_bytes_by_caller[caller]


@dataclass(slots=True)
class Slot:
    """The place of one request in flight, and the memory that its body and its answer take.

    The request is counted while the slot is used as a context.
    """

    _slots: Slots
    _caller: str | None
    held_bytes: int = 0

    def __enter__(self) -> Self:
        """Take the slot; raises OverloadedError if none is free."""
        self._slots.take(self._caller)
        return self

    def __exit__(self, *_: object) -> None:
        """Release the slot and its memory."""
        self.hold(-self.held_bytes)
        self._slots.give_back(self._caller)

    def hold(self, size_bytes: int) -> None:
        """Add to the request's memory (negative: subtract); raises OverloadedError at a limit."""
        slots, caller = self._slots, self._caller
        if size_bytes > 0:
            free_bytes = slots.max_bytes - slots.held_bytes - size_bytes
            if free_bytes < 0:
                problem = "The gateway is at its limit of memory for requests in flight."
                raise OverloadedError("overloaded", problem)
            callers_bytes = slots.held_bytes_by_caller[caller] + size_bytes
            if caller is not None and callers_bytes > FAIR_SHARE * free_bytes:
                problem = "This key is at its limit of memory for requests in flight."
                raise OverloadedError("too_many_requests", problem, is_callers=True)
        slots.held_bytes += size_bytes
        slots.held_bytes_by_caller[caller] += size_bytes
        self.held_bytes += size_bytes


class DecisionQueue:
    """Threads for decisions, with a queue that is limited in length and waiting time.

    Callers take turns, so that no caller can make all others wait. A caller is an API key. Without
    keys, all requests have the caller None.
    """

    def __init__(self, threads: int, max_waiting: int, max_wait_s: float) -> None:
        """Run `threads` decisions at a time; `max_waiting` more wait, for `max_wait_s` at most."""
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="decisions")
        self._free = threads
        self._max_waiting = max_waiting
        self._max_wait_s = max_wait_s
        self._places: dict[str | None, deque[asyncio.Future[None]]] = {}
        """Waiting decisions by caller. The first caller gets the next thread, then becomes last."""

    @property
    def waiting(self) -> int:
        """Number of decisions that wait for a thread."""
        return sum(map(len, self._places.values()))

    async def run(
        self, caller: str | None, decide: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a function in a thread and return its result; raises OverloadedError.

        If the call is cancelled, its place in the queue is free at once. A running function is not
        interrupted; its thread is free when it returns.
        """
        if self._free > 0:
            self._free -= 1
        else:
            await self._wait_for_thread(caller)
        running = self._threads.submit(decide, *args, **kwargs)
        try:
            return await asyncio.wrap_future(running)
        finally:
            if running.done():
                self._release()
            else:
                loop = asyncio.get_running_loop()

                def release(_: Future[T]) -> None:
                    with suppress(RuntimeError):  # the loop is closed, so nothing waits
                        loop.call_soon_threadsafe(self._release)

                running.add_done_callback(release)

    def close(self) -> None:
        """End the threads after their current functions."""
        self._threads.shutdown(wait=False)

    async def _wait_for_thread(self, caller: str | None) -> None:
        if self.waiting >= self._max_waiting:
            self._make_room(caller)
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._places.setdefault(caller, deque()).append(place)
        try:
            async with asyncio.timeout(self._max_wait_s):
                await place
        except TimeoutError as exc:
            self._leave(caller, place)
            problem = f"No decision thread was free within {self._max_wait_s:g} s. Retry later."
            raise OverloadedError("decisions_queued", problem) from exc
        except asyncio.CancelledError:
            self._leave(caller, place)
            raise

    def _make_room(self, caller: str | None) -> None:
        """Make room in the queue: refuse the last waiting decision of the busiest caller.

        Raises OverloadedError if `caller` is the busiest one, or would be with its new decision.
        """
        problem = "Too many requests wait for a decision. Retry later."
        refusal = OverloadedError("decisions_queued", problem)
        own = len(self._places.get(caller, ()))
        busiest = max(self._places, key=lambda name: len(self._places[name]), default=caller)
        if busiest == caller or len(self._places[busiest]) <= own + 1:
            raise refusal
        place = self._places[busiest][-1]
        self._remove(busiest, place)
        if not place.done():
            place.set_exception(refusal)

    def _leave(self, caller: str | None, place: asyncio.Future[None]) -> None:
        """Give up a place, or the thread that was assigned to it at the same moment."""
        if place in self._places.get(caller, ()):
            self._remove(caller, place)
        elif not place.cancelled() and place.exception() is None:
            self._release()

    def _remove(self, caller: str | None, place: asyncio.Future[None]) -> None:
        places = self._places[caller]
        places.remove(place)
        if not places:
            del self._places[caller]

    def _release(self) -> None:
        """Assign a free thread to the caller whose turn it is."""
        while self._places:
            caller = next(iter(self._places))
            places = self._places.pop(caller)
            place = places.popleft()
            if places:
                self._places[caller] = places
            if not place.done():
                place.set_result(None)
                return
        self._free += 1


class Drain:
    """Graceful shutdown of the process.

    For `delay_s` after the signal, requests are served as before, while readiness probes fail:
    load balancers take some seconds to notice. Then new requests are refused, and those in flight
    have `timeout_s` to end.
    """

    def __init__(
        self, *, delay_s: float, timeout_s: float, clock: Callable[[], float],
        in_flight: Callable[[], int],
    ) -> None:  # fmt: skip
        """Serve until `begin`; `clock` returns seconds and never goes back."""
        self._delay_s = delay_s
        self._timeout_s = timeout_s
        self._clock = clock
        self._count_in_flight = in_flight
        self._begun_s = 0.0
        self.begun = asyncio.Event()
        """Set when the process was asked to stop."""

    @property
    def has_begun(self) -> bool:
        """Return whether the process was asked to stop, so that readiness probes fail."""
        return self.begun.is_set()

    @property
    def is_refusing(self) -> bool:
        """Return whether new requests are refused."""
        return self.has_begun and self._clock() >= self._begun_s + self._delay_s

    @property
    def in_flight(self) -> int:
        """Number of requests whose answers are not complete."""
        return self._count_in_flight()

    @property
    def remaining_s(self) -> float:
        """Seconds until the shutdown no longer waits for requests in flight."""
        begun_s = self._begun_s if self.has_begun else self._clock()
        return max(0.0, begun_s + self._delay_s + self._timeout_s - self._clock())

    @property
    def is_over(self) -> bool:
        """Return whether the shutdown can end: no request is in flight, or the time has run out."""
        return self.is_refusing and (self.in_flight == 0 or self.remaining_s == 0)

    def begin(self) -> None:
        """Begin the shutdown; a second call has no effect."""
        if not self.has_begun:
            self._begun_s = self._clock()
            self.begun.set()

    def check(self) -> None:
        """Raise OverloadedError if new requests are refused."""
        if self.is_refusing:
            problem = "This gateway is shutting down. Retry: another gateway may answer."
            raise OverloadedError(SHUTTING_DOWN, problem)
