"""Limits on concurrent work, and the graceful shutdown. Refusals are sent at once.

With an unbounded queue, every client gets its answer late, and most clients have given up by then.
A client that is refused early can try elsewhere.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import ParamSpec, Self, TypeVar

from router_service.core.errors import OverloadedError
from router_service.core.resources import Work
from router_service.core.sharing import FairSemaphore, has_share

P = ParamSpec("P")
T = TypeVar("T")


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
        self.max_requests = max_requests
        self.max_requests_per_caller = max_requests_per_caller
        self.in_flight = 0
        self.max_bytes = max_bytes
        self.held_bytes = 0
        self.used: dict[str | None, _Use] = {}

    def take(self, caller: str | None) -> Slot:
        """Count a request until its slot is released; raises OverloadedError if none is free."""
        free = self.max_requests - self.in_flight
        if free <= 0:
            problem = f"The gateway is at its limit of {self.max_requests} requests in flight."
            raise OverloadedError("overloaded", problem)
        use, limit = self.used.get(caller) or _Use(), self.max_requests_per_caller
        if not (has_share(caller, use.requests, free) if limit is None else use.requests < limit):
            problem = f"This key is at its limit of {use.requests} requests in flight."
            raise OverloadedError("too_many_requests", problem, is_callers=True)
        self.in_flight += 1
        use.requests += 1
        self.used[caller] = use
        return Slot(self, caller, use)


@dataclass(slots=True)
class _Use:
    """What one caller uses."""

    requests: int = 0
    held_bytes: int = 0


@dataclass(slots=True)
class Slot:
    """The place of one request in flight; as a context, it is released at the end."""

    slots: Slots
    caller: str | None
    use: _Use
    held_bytes: int = 0
    """The memory that the request's body and its answer take."""

    def __enter__(self) -> Self:
        """Return the slot."""
        return self

    def __exit__(self, *_: object) -> None:
        """Free the slot and its memory."""
        slots, use = self.slots, self.use
        slots.in_flight -= 1
        slots.held_bytes -= self.held_bytes
        use.requests -= 1
        use.held_bytes -= self.held_bytes
        if not use.requests:
            del slots.used[self.caller]

    def hold(self, size_bytes: int) -> None:
        """Add to the request's memory (negative: subtract); raises OverloadedError at a limit."""
        slots, use = self.slots, self.use
        if size_bytes > 0:
            free_bytes = slots.max_bytes - slots.held_bytes - size_bytes
            if free_bytes < 0:
                problem = "The gateway is at its limit of memory for requests in flight."
                raise OverloadedError("overloaded", problem)
            if not has_share(self.caller, use.held_bytes + size_bytes, free_bytes):
                problem = "This key is at its limit of memory for requests in flight."
                raise OverloadedError("too_many_requests", problem, is_callers=True)
        slots.held_bytes += size_bytes
        use.held_bytes += size_bytes
        self.held_bytes += size_bytes


LARGE_BYTES = 64 * 1024
"""Larger bodies share one thread. Reading some of them takes 0.4 s, and an ordinary request, which
takes 0.01 s, must not wait that long for a thread. More threads would not read them faster, because
reading a body needs the interpreter's lock."""


LIST_THREADS = 2
"""Threads that read lists, usage and accounts from the database. More would only hold more answers
in memory, because writing them as JSON needs the interpreter's lock."""
MAX_WAITING_LISTS = 200
"""Requests for lists, usage and accounts that may wait for a thread."""


class DecisionQueue:
    """Threads for one kind of work, with a queue that is limited in length and waiting time.

    Callers share the processor time of the threads: a free thread goes to the caller that has used
    least of it (start-time fair queueing: Goyal, Vin and Cheng, 1996). A caller is an API key.
    Without keys, all requests have the caller None.
    """

    def __init__(
        self,
        threads: int,
        max_waiting: int,
        max_wait_s: float,
        processor_clock: Callable[[], float] = time.thread_time,
        what: str = "decision",
    ) -> None:
        """Run `threads` decisions of small bodies at a time, and one of a large body.

        Of either kind, `max_waiting` more may wait, each for at most `max_wait_s`.
        `processor_clock` returns the seconds of processor time that the calling thread has used,
        and `what` names the work in errors and metrics.
        """
        self._what = what
        self._threads = ThreadPoolExecutor(threads + 1, thread_name_prefix=f"{what}s")
        self._small = FairSemaphore(threads, self._used_s, leaves_room=False)
        self._large = FairSemaphore(1, self._used_s, leaves_room=False)
        self._max_waiting = max_waiting
        self._max_wait_s = max_wait_s
        self._processor_clock = processor_clock
        self._used_by_caller_s: dict[str | None, float] = {}
        self._least_used_s = 0.0
        """What the caller that was served last had used. Callers that have used less, because they
        paused, count as having used this much: nobody saves up time."""

    @property
    def waiting(self) -> int:
        """Number of decisions that wait for a thread."""
        return self._small.waiting + self._large.waiting

    async def run(
        self,
        caller: str | None,
        size_bytes: int,
        decide: Callable[P, T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run a function in a thread and return its result; raises OverloadedError.

        `size_bytes` is the size of the body that the function reads. If the call is cancelled, its
        place in the queue is free at once. A running function ends when it next calls
        `stop_if_abandoned`, or when it returns; then its thread is free.
        """
        threads = self._large if size_bytes > LARGE_BYTES else self._small
        if not threads.try_acquire(caller):
            await self._wait_for_thread(threads, caller)
        self._least_used_s = self._used_s(caller)
        work, spent_s = Work(), 0.0

        def run() -> T:
            nonlocal spent_s
            begun_s = self._processor_clock()
            try:
                return work.run(decide, *args, **kwargs)
            finally:
                spent_s = self._processor_clock() - begun_s

        def release() -> None:
            self._used_by_caller_s[caller] = self._used_s(caller) + spent_s
            threads.release(caller)

        running = self._threads.submit(run)
        try:
            return await asyncio.wrap_future(running)
        finally:
            if running.done():
                release()
            else:
                work.is_abandoned = True
                loop = asyncio.get_running_loop()

                def release_later(_: Future[T]) -> None:
                    with suppress(RuntimeError):  # the loop is closed, so nothing waits
                        loop.call_soon_threadsafe(release)

                running.add_done_callback(release_later)

    def close(self) -> None:
        """End the threads after their current functions."""
        self._threads.shutdown(wait=False)

    async def _wait_for_thread(self, threads: FairSemaphore, caller: str | None) -> None:
        if threads.waiting >= self._max_waiting:
            self._make_room(threads, caller)
        try:
            async with asyncio.timeout(self._max_wait_s):
                await threads.acquire(caller)
        except TimeoutError as exc:
            problem = f"No {self._what} thread was free within {self._max_wait_s:g} s. Retry later."
            raise OverloadedError(f"{self._what}s_queued", problem) from exc

    def _make_room(self, threads: FairSemaphore, caller: str | None) -> None:
        """Make room in the queue: refuse the last waiting decision of the busiest caller.

        Raises OverloadedError if `caller` is the busiest one, or would be with its new decision.
        """
        problem = f"Too many requests wait for a {self._what}. Retry later."
        refusal = OverloadedError(f"{self._what}s_queued", problem)
        busiest = threads.longest_queue()
        if threads.waiting_of(busiest) <= threads.waiting_of(caller) + (busiest != caller):
            raise refusal
        threads.refuse_last(busiest, refusal)

    def _used_s(self, caller: str | None) -> float:
        return max(self._least_used_s, self._used_by_caller_s.get(caller, 0.0))


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
        self._is_cutting_off = False
        self.has_begun = False
        """Whether the process was asked to stop, so that readiness probes fail."""
        self.begun = asyncio.Event()
        """Set at the same time, for tasks that wait for it."""

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
            self._begun_s, self.has_begun = self._clock(), True
            self.begun.set()

    def check(self) -> None:
        """Raise OverloadedError if new requests are refused."""
        if self.has_begun and self.is_refusing:
            problem = "This gateway is shutting down. Retry: another gateway may answer."
            raise OverloadedError(SHUTTING_DOWN, problem)

    def cut_off(self) -> None:
        """Let requests that are cancelled from now on end with the error of the shutdown."""
        self._is_cutting_off = True

    def cut_off_error(self) -> OverloadedError | None:
        """Return the error for a request that is cancelled because the shutdown's time is over.

        Return None if the cancellation has another cause, such as a client that left.
        """
        if not self._is_cutting_off:
            return None
        problem = "This gateway is shutting down, and had no time left to complete the answer."
        return OverloadedError(SHUTTING_DOWN, f"{problem} Retry: another gateway may answer.")
