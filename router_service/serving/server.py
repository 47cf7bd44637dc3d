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

import uvicorn
from fastapi import FastAPI

from router_service.http.protocol import ConnectionLimits, protocol_with_limits
from router_service.requests.limits import Drain
from router_service.serving.accepting import AcceptingServer
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
