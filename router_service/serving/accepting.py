"""Accepts connections: many in one iteration of the event loop.

libuv accepts one connection in each iteration of the loop (since 1.45), and an iteration answers
all requests that have arrived. So the last of 256 clients that connected at the same time waited
7 s for its first answer, while others were served again and again. If the process has no free file
descriptor, libuv also accepts and closes all waiting connections. So the gateway does not use
libuv's servers.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import cast

import uvicorn

from router_service.http.protocol import BoundedProtocol

FAILURE_PAUSE_S = 0.1
"""Pause after a connection could not be accepted, because the process has no file descriptor."""

SHARE_AT_ONCE = 1 / 16
"""Part of the largest number of connections that may be accepted in one iteration of the loop. Each
of them may replace an idle connection, whose descriptor is closed an iteration later."""


class Acceptor:
    """Accepts the connections that wait, in the order of their arrival."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        create_protocol: Callable[[], asyncio.Protocol],
        most_at_once: int,
    ) -> None:
        """Begin to accept, at most `most_at_once` connections in one iteration of the loop."""
        self._listeners = listeners
        self._create_protocol = create_protocol
        self._most_at_once = most_at_once
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        self._is_closed = False
        for listener in listeners:
            listener.setblocking(False)
            self._listen(listener)

    def close(self) -> None:
        """Accept no more connections."""
        self._is_closed = True
        for listener in self._listeners:
            self._loop.remove_reader(listener)

    async def wait_closed(self) -> None:
        """Wait for the accepted connections that are still being opened."""
        if self._opening:
            await asyncio.wait(self._opening)

    def _listen(self, listener: socket.socket) -> None:
        if not self._is_closed:
            self._loop.add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(self._most_at_once):
            try:
                accepted, _ = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError:
                self._loop.remove_reader(listener)
                self._loop.call_later(FAILURE_PAUSE_S, self._listen, listener)
                return
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            opening = self._loop.create_task(self._open(accepted))
            self._opening.add(opening)
            opening.add_done_callback(self._opening.discard)

    async def _open(self, accepted: socket.socket) -> None:
        await self._loop.connect_accepted_socket(self._create_protocol, accepted)


class AcceptingServer(uvicorn.Server):
    """uvicorn server whose connections an `Acceptor` accepts."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the app, and accept connections."""
        await super().startup([])
        protocol = cast("type[BoundedProtocol]", self.config.http_protocol_class)

        def create_protocol() -> BoundedProtocol:
            return protocol(self.config, self.server_state, self.lifespan.state)

        most_at_once = max(1, int(SHARE_AT_ONCE * protocol.limits.max_connections))
        acceptor = Acceptor(sockets or (), create_protocol, most_at_once)
        # uvicorn closes its servers, and waits for them, when it shuts down.
        self.servers.append(cast("asyncio.Server", acceptor))
