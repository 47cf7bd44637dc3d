"""Workers share new connections, and leave none waiting."""

from __future__ import annotations

import asyncio
import selectors
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from router_service.serving.accepting import TOLERANCE, Acceptor, ConnectionCounts
from tests.serving import wait_for_async


class Worker:
    """A worker's open connections."""

    def __init__(self) -> None:
        self.open: set[asyncio.BaseTransport] = set()

    def count(self) -> int:
        """Return the number of connections."""
        return len(self.open)

    def connection(self) -> asyncio.Protocol:
        """Return the protocol of a new connection."""
        return Connection(self.open)


class Connection(asyncio.Protocol):
    """A connection that adds itself to a set once it is open."""

    def __init__(self, opened: set[asyncio.BaseTransport]) -> None:
        self._opened = opened

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection."""
        self._opened.add(transport)


class Clock(selectors.DefaultSelector):
    """Time that passes only while nothing happens, so that a busy machine changes no result."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready; if nothing is, let the time pass instead of waiting."""
        ready = super().select(0)
        if not ready:
            self.now_s += timeout or 0
        return ready


def event_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop with such a clock."""
    clock = Clock()
    loop = asyncio.SelectorEventLoop(clock)
    loop.time = lambda: clock.now_s  # pyrefly: ignore[method-assign]
    return loop


def serve(directory: Path, workers: int, clients: int, serving: int) -> list[int]:
    """Return how many of these clients, who connect at once, each worker accepts.

    Only the first `serving` workers accept. The others have no connection and hang.
    """

    async def run() -> list[int]:
        counts = ConnectionCounts(directory, workers)
        with ExitStack() as stack:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=clients))
            for _ in range(clients):
                stack.enter_context(socket.create_connection(listener.getsockname()))
            served = [Worker() for _ in range(workers)]
            for number in range(workers):
                counts.show(number, 0)
            for number, worker in enumerate(served[:serving]):
                own = stack.enter_context(listener.dup())
                acceptor = Acceptor([own], worker.connection, worker.count, clients, counts, number)
                acceptor.start()
                stack.callback(acceptor.close)

            async def all_are_accepted() -> bool:
                return sum(worker.count() for worker in served) == clients

            await wait_for_async(all_are_accepted, "every client is accepted")
            for transport in (each for worker in served for each in worker.open):
                transport.close()
            return [worker.count() for worker in served]

    with asyncio.Runner(loop_factory=event_loop) as runner:
        return runner.run(run())


@pytest.mark.parametrize(("workers", "clients"), [(2, 8), (4, 8), (2, 200)])
def test_workers_get_equal_numbers_of_connections(
    tmp_path: Path, workers: int, clients: int
) -> None:
    """Clients that connect at the same time are spread evenly, up to the tolerance.

    Each worker may be ahead of the other by the tolerance, and may take connections from a worker
    that pauses.
    """
    accepted = serve(tmp_path, workers, clients, serving=workers)
    assert max(accepted) - min(accepted) <= 2 * (1 + TOLERANCE * clients)


def test_connections_do_not_wait_for_a_worker_that_hangs(tmp_path: Path) -> None:
    """A worker accepts connections beyond its share that another one does not take."""
    assert serve(tmp_path, workers=2, clients=50, serving=1) == [50, 0]


def test_ended_worker_does_not_count(tmp_path: Path) -> None:
    """A worker that has ended gets no turn; one that starts without connections is next."""
    parent, worker = ConnectionCounts(tmp_path, 2), ConnectionCounts(tmp_path, 2)
    worker.show(0, 40)
    assert parent.is_turn_of(0)  # the other one has not started
    worker.show(1, 0)
    assert not parent.is_turn_of(0)
    assert parent.is_turn_of(1)
    parent.forget(1)
    assert worker.is_turn_of(0)
