"""Accepts connections: many in one iteration of the event loop, and each worker its share.

libuv accepts one connection in each iteration of the loop (since 1.45), and an iteration answers
all requests that have arrived. So the last of 256 clients that connected at the same time waited
7 s for its first answer, while others were served again and again. If the process has no free file
descriptor, libuv also accepts and closes all waiting connections. So the gateway does not use
libuv's servers.

All workers wait for connections at the same listeners. Without an agreement, an idle worker takes
any number of them: of 8 clients that connected at the same time, one of two workers got 6 to 8. A
client keeps its connections, so the other worker's core then has nothing to do. So each worker
publishes how many connections it has, and leaves new ones to workers that have fewer. It waits only
`PAUSE_S` for them, because a worker may be busy or hang.
"""

from __future__ import annotations

import asyncio
import mmap
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import uvicorn

from router_service.http.protocol import BoundedProtocol

CONNECTIONS = "connections"
"""Name of the file with the workers' counts, in the directory that the workers share."""

PAUSE_S = 0.002
"""How long a worker leaves a waiting connection to others."""

FAILURE_PAUSE_S = 0.1
"""Pause after a connection could not be accepted, because the process has no file descriptor."""

TOLERANCE = 1 / 16
"""Part of all connections that a worker may have above another one, so that a burst of connections
is accepted without waiting for the other workers after each one."""

SHARE_AT_ONCE = 1 / 16
"""Part of the largest number of connections that may be accepted in one iteration of the loop. Each
of them may replace an idle connection, whose descriptor is closed an iteration later."""

_NOT_SERVING = -1


class ConnectionCounts:
    """Number of connections of each worker, in memory that all workers and their parent map.

    Each worker writes its own number only, in one aligned store of 8 bytes, so there is no lock.
    """

    def __init__(self, directory: Path | None = None, workers: int = 1) -> None:
        """Map the file in the directory that the workers share; create it in the parent.

        A gateway without workers needs no directory.
        """
        if directory is None:
            self._counts = memoryview(bytearray(8 * workers)).cast("q")
            return
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
    """Accepts a worker's share of the connections that wait, in the order of their arrival."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        create_protocol: Callable[[], asyncio.Protocol],
        count: Callable[[], int],
        most_at_once: int,
        counts: ConnectionCounts,
        worker: int,
    ) -> None:
        """Prepare to accept; `count` returns the number of this worker's open connections.

        At most `most_at_once` connections are accepted in one iteration of the event loop.
        """
        self._listeners = listeners
        self._create_protocol = create_protocol
        self._count = count
        self._most_at_once = most_at_once
        self._counts = counts
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        """Accepted connections that `count` does not include yet."""
        self._is_closed = False

    def start(self) -> None:
        """Begin to accept."""
        for listener in self._listeners:
            listener.setblocking(False)
            self._loop.add_reader(listener, self._accept, listener)
        self.show()

    def close(self) -> None:
        """Accept no more connections."""
        self._is_closed = True
        for listener in self._listeners:
            self._loop.remove_reader(listener)

    async def wait_closed(self) -> None:
        """Wait for the accepted connections that are still being opened."""
        if self._opening:
            await asyncio.wait(self._opening)

    def show(self) -> None:
        """Publish the number of this worker's connections."""
        self._counts.show(self._worker, self._count() + len(self._opening))

    def _accept(self, listener: socket.socket) -> None:
        """Accept connections while it is this worker's turn, and then pause if others wait."""
        self.show()
        for _ in range(self._most_at_once):
            if not self._counts.is_turn_of(self._worker):
                self._pause(listener, PAUSE_S)
                return
            if not self._accept_one(listener):
                return

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
        if not self._is_closed:
            self._loop.add_reader(listener, self._accept, listener)
            self._accept_one(listener)


class AcceptingServer(uvicorn.Server):
    """uvicorn server whose connections an `Acceptor` accepts."""

    def __init__(
        self, config: uvicorn.Config, counts: ConnectionCounts | None = None, worker: int = 0
    ) -> None:
        """Take the number of connections of all workers, and the place of this one among them."""
        super().__init__(config)
        self._counts = ConnectionCounts() if counts is None else counts
        self._worker = worker
        self._acceptor: Acceptor | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the app, and accept connections."""
        await super().startup([])
        protocol = cast("type[BoundedProtocol]", self.config.http_protocol_class)

        def create_protocol() -> BoundedProtocol:
            return protocol(self.config, self.server_state, self.lifespan.state)

        connections = self.server_state.connections
        self._acceptor = Acceptor(
            sockets or (),
            create_protocol,
            lambda: len(connections),
            max(1, int(SHARE_AT_ONCE * protocol.limits.max_connections)),
            self._counts,
            self._worker,
        )
        self._acceptor.start()
        # uvicorn closes its servers, and waits for them, when it shuts down.
        self.servers.append(cast("asyncio.Server", self._acceptor))

    async def on_tick(self, counter: int) -> bool:
        """Publish the number of connections, and return whether to stop serving."""
        if self._acceptor is not None:
            self._acceptor.show()
        return await super().on_tick(counter)
