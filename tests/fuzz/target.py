"""Shared parts of fuzz targets: description, result, and an event loop without waiting."""

from __future__ import annotations

import asyncio
import random
import selectors
import zlib
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")

Mutate = Callable[[bytes, random.Random], bytes]
"""Function that changes an input but keeps its form, so that mutations get past the outer
syntax."""

MAX_VIRTUAL_S = 7200.0
"""No timeout of the gateway is this long; a longer wait has no end."""

MAX_TURNS = 100_000
"""Turns of the event loop after which work without progress counts as a livelock."""


class Violation(AssertionError):  # noqa: N818 - it is the target's verdict, not an error of ours
    """A property that must hold for every input does not hold for this one."""


@dataclass(frozen=True, slots=True)
class Target:
    """One fuzz target."""

    name: str
    check: Callable[[bytes], None]
    """Raises for an input that shows a defect, and returns for all others."""
    mutate: Mutate
    attacks: Sequence[bytes]
    """Inputs made from `tests/attacks.py`, which are checked and changed like the corpus."""


def fail(problem: str) -> NoReturn:
    """Report a defect."""
    raise Violation(problem)


def expect(condition: object, problem: str) -> None:
    """Report a defect unless the condition holds."""
    if not condition:
        fail(problem)


def randomness(data: bytes) -> random.Random:
    """Return a random generator seeded by the input, so that replays are identical."""
    return random.Random(zlib.crc32(data))


def splits(data: bytes, rng: random.Random) -> Iterator[list[bytes]]:
    """Yield ways in which a network may split a message: whole, bytewise, at random places."""
    yield [data] if data else []
    yield [data[i : i + 1] for i in range(len(data))]
    places = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(1, 6)))
    yield [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True) if a < b]


class _Clock(selectors.SelectSelector):
    """Selector that never waits: time passes at once."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Advance the time to the next timer."""
        if timeout is None:
            fail("the event loop waits for ever: nothing is scheduled")
        self.now_s += max(0.0, timeout)
        if self.now_s > MAX_VIRTUAL_S:
            fail(f"something still waits after {MAX_VIRTUAL_S:g} s")
        return []


class FakeTransport(asyncio.Transport):
    """A connection to a peer, which records what is written and whether the gateway reads."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.is_reading_paused = False
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Record the data; a closed transport drops it, as asyncio's do."""
        if not self.is_closed:
            self.written += data

    def close(self) -> None:
        """Close."""
        self.is_closed = True

    def abort(self) -> None:
        """Close at once."""
        self.is_closed = True

    def is_closing(self) -> bool:
        """Return whether the transport is closed."""
        return self.is_closed

    def get_write_buffer_size(self) -> int:
        """Return 0, because the peer reads at once."""
        return 0

    def pause_reading(self) -> None:
        """Hold back the peer's data."""
        self.is_reading_paused = True

    def resume_reading(self) -> None:
        """Continue with the peer's data."""
        self.is_reading_paused = False

    def is_reading(self) -> bool:
        """Return whether the gateway reads the peer's data."""
        return not (self.is_reading_paused or self.is_closed)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Event loop with a virtual clock; a wait without an end is a defect."""

    def __init__(self) -> None:
        self._clock = _Clock()
        self.problems: list[str] = []
        super().__init__(self._clock)
        self.set_exception_handler(self._note)

    def time(self) -> float:
        """Return the virtual time, in seconds."""
        return self._clock.now_s

    async def settle(self) -> None:
        """Run until all remaining work waits for a timer or for more input."""
        ready: Sequence[object] = self._ready  # pyrefly: ignore[missing-attribute]  # asyncio's own
        for _ in range(MAX_TURNS):
            await asyncio.sleep(0)
            if not ready:
                return
        fail(f"the event loop is still busy after {MAX_TURNS} turns")

    def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end, and check that it leaves no work behind."""
        self._clock.now_s = 0.0
        self.problems.clear()
        try:
            result = self.run_until_complete(work)
            self.run_until_complete(self.settle())
        finally:
            left = asyncio.all_tasks(self)
            for task in left:
                task.cancel()
            if left:
                self.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        timers = [t for t in self._scheduled if not t.cancelled()]  # pyrefly: ignore[missing-attribute]
        self._scheduled.clear()  # pyrefly: ignore[missing-attribute]
        expect(not self.problems, "; ".join(self.problems))
        expect(not left, f"tasks are left behind: {left}")
        expect(not timers, f"timers are left behind: {timers}")
        return result

    def _note(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        exception = context.get("exception")
        self.problems.append(f"{context['message']}: {exception!r}")


def virtual_loop() -> VirtualLoop:
    """Return this process's loop; the first call creates it."""
    global _loop  # noqa: PLW0603 - making a loop takes longer than most inputs
    if _loop is None:
        _loop = VirtualLoop()
        asyncio.set_event_loop(_loop)
    return _loop


_loop: VirtualLoop | None = None
