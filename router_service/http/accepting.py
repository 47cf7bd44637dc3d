"""Shares new connections among the workers of a gateway.

All workers wait for connections at the same listeners. Without an agreement, an idle worker takes
any number of them: of 8 clients that connected at the same time, one of two workers got 6 to 8. A
client keeps its connections, so the other worker's core then has nothing to do.

So each worker publishes how many connections it has, and leaves new ones to workers that have
fewer. It waits only `PAUSE_S` for them, because a worker may be busy or hang.
"""

from __future__ import annotations

import asyncio
import mmap
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

CONNECTIONS = "connections"
"""Name of the file with the workers' counts, in the directory that the workers share."""

PAUSE_S = 0.002
"""How long a worker leaves a waiting connection to others."""

FAILURE_PAUSE_S = 0.1
"""Pause after a connection could not be accepted, because the process has no file descriptor."""

TOLERANCE = 1 / 16
"""Part of all connections that a worker may have above another one, so that a burst of connections
is accepted without waiting for the other workers after each one."""

_NOT_SERVING = -1


class ConnectionCounts:
    """Number of connections of each worker, in memory that all workers and their parent map.

    Each worker writes its own number only, in one aligned store of 8 bytes, so there is no lock.
    """

    def __init__(self, directory: Path, workers: int) -> None:
        """Map the file in the directory that the workers share; create it in the parent."""
        path = directory / CONNECTIONS
        if not path.exists():
            path.write_bytes(_NOT_SERVING.to_bytes(8, "little", signed=True) * workers)
        with path.open("r+b") as file:
            self._counts = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")

    def show(self, worker: int, connections: int) -> None:
        """Publish the number of a worker's connections."""
        self._counts[worker] = connections

    def forget(self, worker: int) -> None:
        """Leave a worker that has ended out of account."""
        self._counts[worker] = _NOT_SERVING

    def is_turn_of(self, worker: int) -> bool:
        """Return whether a worker should accept the next connection."""
        serving = [count for count in self._counts if count != _NOT_SERVING]
        return self._counts[worker] <= min(serving) + int(TOLERANCE * sum(serving))


class Acceptor:
    """Accepts a worker's share of the connections that wait at the gateway's listeners."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        create_protocol: Callable[[], asyncio.Protocol],
        count: Callable[[], int],
        counts: ConnectionCounts,
        worker: int,
    ) -> None:
        """Prepare to accept; `count` returns the number of this worker's open connections."""
        self._listeners = listeners
        self._create_protocol = create_protocol
        self._count = count
        self._counts = counts
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        """Accepted connections that `count` does not include yet."""
        self._is_stopped = False

    def start(self) -> None:
        """Begin to accept."""
        for listener in self._listeners:
            listener.setblocking(False)
            self._loop.add_reader(listener, self._accept, listener)
        self.show()

    def stop(self) -> None:
        """Accept no more connections."""
        self._is_stopped = True
        for listener in self._listeners:
            self._loop.remove_reader(listener)

    def show(self) -> None:
        """Publish the number of this worker's connections."""
        self._counts.show(self._worker, self._count() + len(self._opening))

    def _accept(self, listener: socket.socket) -> None:
        """Accept connections while it is this worker's turn, and then pause if others wait."""
        self.show()
        while self._counts.is_turn_of(self._worker):
            if not self._accept_one(listener):
                return
        self._pause(listener, PAUSE_S)

    def _accept_one(self, listener: socket.socket) -> bool:
        """Accept a connection; return False if none waits, or if that failed."""
        try:
            accepted, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return False
        except OSError:
            self._pause(listener, FAILURE_PAUSE_S)
            return False
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opening = self._loop.create_task(self._open(accepted))
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)
        self.show()
        return True

    async def _open(self, accepted: socket.socket) -> None:
        await self._loop.connect_accepted_socket(self._create_protocol, accepted)

    def _pause(self, listener: socket.socket, pause_s: float) -> None:
        self._loop.remove_reader(listener)
        self._loop.call_later(pause_s, self._resume, listener)

    def _resume(self, listener: socket.socket) -> None:
        """Accept one connection that no other worker has taken, and wait for the next ones."""
        if not self._is_stopped:
            self._loop.add_reader(listener, self._accept, listener)
            self._accept_one(listener)
