"""Shared parts of fuzz targets: an event loop without waiting, and what h11 reads."""

from __future__ import annotations

import asyncio
import random
import selectors
import zlib
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import h11

T = TypeVar("T")

MAX_VIRTUAL_S = 7200.0
"""No timeout of the gateway is this long; a longer wait has no end."""

MAX_TURNS = 100_000
"""Turns of the event loop after which work without progress counts as a livelock."""


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
            raise AssertionError("the event loop waits for ever: nothing is scheduled")
        self.now_s += max(0.0, timeout)
        if self.now_s > MAX_VIRTUAL_S:
            raise AssertionError(f"something still waits after {MAX_VIRTUAL_S:g} s")
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
        raise AssertionError(f"the event loop is still busy after {MAX_TURNS} turns")

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
        assert not self.problems, "; ".join(self.problems)
        assert not left, f"tasks are left behind: {left}"
        assert not timers, f"timers are left behind: {timers}"
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


@dataclass(slots=True)
class ReadMessage:
    """A message as h11 has read it."""

    head: h11.Request | h11.Response
    body: bytes = b""
    is_complete: bool = False


def read_by_h11(role: type[h11.SERVER | h11.CLIENT], data: bytes) -> tuple[list[ReadMessage], str]:
    """Return the messages that h11 reads, and the reason why it stops: "" after a whole answer."""
    connection = h11.Connection(role, max_incomplete_event_size=10**6)
    messages: list[ReadMessage] = []
    if role is h11.CLIENT:
        connection.send(h11.Request(method="GET", target="/", headers=[("host", "a")]))
        connection.send(h11.EndOfMessage())
    try:
        if data:
            connection.receive_data(data)
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA and role is h11.CLIENT:
                connection.receive_data(b"")  # the upstream has closed the connection
            elif event is h11.NEED_DATA:
                return messages, "incomplete"
            elif isinstance(event, (h11.Request, h11.Response)):
                messages.append(ReadMessage(event))
            elif isinstance(event, h11.Data):
                messages[-1].body += event.data
            elif isinstance(event, h11.EndOfMessage):
                messages[-1].is_complete = True
                if role is h11.CLIENT:
                    return messages, ""
                connection.send(h11.Response(status_code=404, headers=[("content-length", "0")]))
                connection.send(h11.EndOfMessage())
                if connection.our_state is h11.MUST_CLOSE:
                    return messages, "closed"
                connection.start_next_cycle()
            elif not isinstance(event, h11.InformationalResponse):
                return messages, "closed"
    except h11.RemoteProtocolError as exc:
        return messages, str(exc)
