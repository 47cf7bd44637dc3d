"""How a process listens: uvicorn with our protocol, and an end that drains."""

from __future__ import annotations

import gc
import logging
import math
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

import uvicorn
from fastapi import FastAPI

from router_service.http.protocol import Limits, bounded
from router_service.lifecycle.draining import Drain
from router_service.settings import ServerSettings

KEEP_ALIVE_S = 75
"""Longer than clients keep idle connections: it is they who close them, not we under them."""

SWITCH_INTERVAL_S = 0.0005
"""How long a thread that decides may keep the interpreter's lock while the event loop waits for it.
With Python's 5 ms, a health check took 3 times as long beside heavy decisions: it needs the lock
for each read and write. Decisions take as much processor time as with 5 ms."""

Handler = Callable[[int, FrameType | None], None]

_log = logging.getLogger("switchcraft.server")


class DrainingServer(uvicorn.Server):
    """Serves until a first signal, drains, and ends with status 0; a second one ends it at once.

    While it drains it listens on: probes must get their answer, and who comes late is told so.
    """

    def __init__(self, config: uvicorn.Config, drain: Drain) -> None:
        super().__init__(config)
        self._drain = drain

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen; what is there by now lives about as long as the process."""
        # A full collection looks at 112,000 objects, and answers nothing for 73 ms; at none of
        # those that are frozen. What a reload replaces is freed by its last reference as before.
        gc.freeze()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Take a signal to stop."""
        self.force_exit = self.should_exit
        self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        """Say whether to stop serving: once all is drained."""
        if not await super().on_tick(counter):
            return False
        if not self._drain.has_begun:
            _log.info("asked to stop: %s requests are in flight", self._drain.in_flight)
            self._drain.begin()
        return self.force_exit or self._drain.is_over

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close what is left; answers that nobody has read yet have the rest of the time."""
        if self.force_exit:
            for connection in self.server_state.connections:
                connection.transport.abort()
        self.config.timeout_graceful_shutdown = 1 + math.ceil(self._drain.remaining_s)
        await super().shutdown(sockets)

    @property
    def handlers(self) -> Mapping[signal.Signals, Handler]:
        """What is done at which signal."""
        return {signal.SIGINT: self.handle_exit, signal.SIGTERM: self.handle_exit}

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take signals while serving; uvicorn's own raises them again, and no end is a good one."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        originals = {number: signal.signal(number, do) for number, do in self.handlers.items()}
        try:
            yield
        finally:
            for number, handler in originals.items():
                signal.signal(number, handler)


def uvicorn_config(app: FastAPI, server: ServerSettings) -> uvicorn.Config:
    """Return how the gateway is served: fast loop and parser, its own logs, no proxy's word."""
    return uvicorn.Config(
        app,
        host=server.host,
        port=server.port,
        loop="uvloop",
        http=bounded(_limits(server)),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
    )


def _limits(server: ServerSettings) -> Limits:
    return Limits(
        max_header_bytes=server.max_header_bytes,
        header_timeout_s=server.header_timeout_s,
        write_timeout_s=server.write_timeout_s,
        max_connections=_max_connections(server.max_connections),
    )


def _max_connections(configured: int) -> int:
    """Return how many client connections this process can hold.

    Half of its descriptors are left for upstreams, Redis and files. A process that runs out of them
    cannot accept a connection even to refuse it, and resets clients at random.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # The soft limit is for programs that use `select`, which the event loop does not.
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard == resource.RLIM_INFINITY or configured <= hard // 2:
        return configured
    _log.warning(
        "server.max_connections lowered: configured=%d allowed=%d cause=%r",
        configured, hard // 2, f"the limit of open files is {hard} (ulimit -n)",
    )  # fmt: skip
    return hard // 2
