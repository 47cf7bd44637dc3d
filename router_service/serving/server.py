"""The server: uvicorn with our HTTP protocol, our way to accept, and a graceful shutdown."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import math
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import cast

import uvicorn
from fastapi import FastAPI

from router_service.http.protocol import BoundedProtocol, ConnectionLimits, protocol_with_limits
from router_service.requests.limits import Drain
from router_service.settings import ServerSettings, Settings

KEEP_ALIVE_S = 75
"""Time until the server closes an idle connection. It is longer than clients wait, so that clients
close their connections first."""

SWITCH_INTERVAL_S = 0.0005
"""Longest time that a decision's thread keeps the interpreter lock while the event loop waits.
With Python's default of 5 ms, a health check took 3 times as long during heavy decisions, because
the event loop needs the lock for each read and write. Decisions use as much processor time as with
5 ms."""

CUT_OFF_S = 1.0
"""Longest time to send the error to requests that are cut off at the end of the shutdown."""

BACKLOG = 2048
"""Connections that may wait to be accepted; uvicorn's default."""

_LISTEN_REMEDIES = {
    errno.EADDRINUSE: (
        "server.port",
        "stop the program that uses the port, or choose another port; 0 takes any free port",
    ),
    errno.EACCES: ("server.port", "choose a port of at least 1024, or allow this one"),
    errno.EADDRNOTAVAIL: ("server.host", "use an address of this machine, such as 127.0.0.1"),
}
"""By the error's number, the setting to change and how."""

FAILURE_PAUSE_S = 0.1
"""Pause after a connection could not be accepted, because the process has no file descriptor."""

SHARE_AT_ONCE = 1 / 16
"""Part of the largest number of connections that may be accepted in one iteration of the loop. Each
of them may replace an idle connection, whose descriptor is closed an iteration later."""

_log = logging.getLogger("switchcraft.server")


@contextmanager
def open_listeners(settings: Settings, host: str) -> Iterator[Sequence[socket.socket]]:
    """Listen at each address of a host; raises ConfigError if that fails."""
    port = settings.server.port
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as exc:
        problem = (
            f"cannot find the host {host!r}: {exc.strerror}; use an address of this machine, such "
            "as 127.0.0.1"
        )
        raise settings.error("server.host", problem) from exc
    with ExitStack() as stack:
        try:
            listeners = tuple(
                stack.enter_context(
                    socket.create_server(address[:2], family=family, backlog=BACKLOG)
                )
                for family, _, _, _, address in addresses
            )
        except OSError as exc:
            where, remedy = _LISTEN_REMEDIES.get(
                exc.errno or 0, ("server.port", "choose another port or host")
            )
            cause = os.strerror(exc.errno or 0)
            problem = f"cannot listen on {host}:{port}: {cause}; {remedy}"
            raise settings.error(where, problem) from exc
        yield listeners


class Acceptor:
    """Accepts the connections that wait, in the order of their arrival, many in one iteration.

    libuv accepts one connection in each iteration of the event loop (since 1.45), and an iteration
    answers all requests that have arrived. So the last of 256 clients that connected at the same
    time waited 7 s for its first answer, while others were served again and again. If the process
    has no free file descriptor, libuv also accepts and closes all waiting connections. So the
    gateway does not use libuv's servers.
    """

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


class DrainingServer(AcceptingServer):
    """uvicorn server that drains at the first stop signal, and stops at once at the second.

    It exits with status 0. It accepts connections while it drains, so that probes are answered and
    a late client gets an error with the cause.
    """

    def __init__(
        self, config: uvicorn.Config, drain: Drain, on_started: Callable[[], None]
    ) -> None:
        """Take a function that is called on the event loop once the server accepts connections."""
        super().__init__(config)
        self._drain = drain
        self._on_started = on_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, and exclude the objects that exist now from garbage collection."""
        # A full collection visits 112,000 objects, which stops the event loop for 73 ms. It skips
        # frozen objects. Reference counting still frees the objects that a reload replaces.
        gc.freeze()
        gc.enable()  # the command line has disabled it
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        await super().startup(sockets)
        if self.started:
            self._on_started()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Handle a signal to stop: drain, and at the second signal stop at once."""
        self.force_exit = self.should_exit
        self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        """Return whether to stop serving: after the drain, or at the second signal."""
        if not await super().on_tick(counter):
            return False
        if not self._drain.has_begun:
            _log.info("shutting down: requests_in_flight=%s", self._drain.in_flight)
            self._drain.begin()
        return self.force_exit or self._drain.is_over

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the connections; until the drain's time is over, clients can read their answers.

        Then requests in flight are cancelled, and end with an error that their clients can read.
        """
        in_flight = set(self.server_state.tasks)
        if self.force_exit:
            for connection in self.server_state.connections:
                connection.transport.abort()
        elif in_flight:
            _log.warning("requests cut off by the shutdown: requests=%d", len(in_flight))
            self._drain.cut_off()
            for task in in_flight:
                task.cancel()
            await asyncio.wait(in_flight, timeout=CUT_OFF_S)
        self.config.timeout_graceful_shutdown = 1 + math.ceil(self._drain.remaining_s)
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals while serving.

        uvicorn's own method raises the signals again afterwards, so that the process would end with
        a failure status after a successful drain.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        stopping = (signal.SIGINT, signal.SIGTERM)
        originals = [signal.signal(number, self.handle_exit) for number in stopping]
        try:
            yield
        finally:
            for number, handler in zip(stopping, originals, strict=True):
                signal.signal(number, handler)


def uvicorn_config(app: FastAPI, server: ServerSettings) -> uvicorn.Config:
    """Return uvicorn's configuration: our protocol and logs, and no trust in proxy headers."""
    limits = ConnectionLimits(
        max_header_bytes=server.max_header_bytes,
        header_timeout_s=server.header_timeout_s,
        write_timeout_s=server.write_timeout_s,
        max_connections=_max_connections(server.max_connections),
    )
    return uvicorn.Config(
        app,
        loop="uvloop",
        http=protocol_with_limits(limits),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
    )


def _max_connections(configured: int) -> int:
    """Return how many client connections this process can hold.

    Half of the file descriptors are left for upstreams, Redis and files. A process without free
    descriptors cannot even accept a connection to refuse it, and resets clients at random.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # The soft limit protects programs that use `select`, which the event loop does not use.
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard == resource.RLIM_INFINITY or configured <= hard // 2:
        return configured
    _log.warning(
        "server.max_connections lowered: configured=%d allowed=%d cause=%r",
        configured, hard // 2, f"the limit of open files is {hard} (ulimit -n)",
    )  # fmt: skip
    return hard // 2
