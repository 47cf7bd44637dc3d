"""One of several processes that serve a port together: what it runs, and what it tells its parent.

The parent tells by signals: SIGTERM to drain, SIGQUIT to end at once, SIGHUP to reload. SIGINT is
left to the parent, for a terminal sends it to both. The channel is open for as long as the parent
lives: a worker without one drains.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import FrameType

import uvicorn

from router_service import signals
from router_service.core.errors import SwitchcraftError
from router_service.core.memory import bound_heap
from router_service.http.job import Job
from router_service.http.listening import DrainingServer, Handler, uvicorn_config
from router_service.lifecycle.gateway import Gateway
from router_service.telemetry.logs import configure_logging


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker serves."""


@dataclass(frozen=True, slots=True)
class Unfit:
    """The worker cannot serve, and ends."""

    reason: str


@dataclass(frozen=True, slots=True)
class Reloaded:
    """The worker was asked to take up the configuration anew, and did."""


Message = Ready | Unfit | Reloaded


def work(job: Job, listeners: Sequence[socket.socket], channel: Connection) -> None:
    """Serve until told to stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Until it serves: what it reads then is the configuration as it is now.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signals.unblock()  # the parent has blocked both for the time of the imports
    bound_heap()
    configure_logging()
    parent = Parent(channel)
    try:
        configure_logging(job.read().logging.level)
        app = job.app(lambda: parent.tell(Reloaded()))
    except SwitchcraftError as exc:
        parent.tell(Unfit(str(exc)))
        sys.exit(1)
    gateway: Gateway = app.state.gateway
    WorkerServer(uvicorn_config(app, gateway.server), gateway, parent).run(list(listeners))


class Parent:
    """Who started this process."""

    def __init__(self, channel: Connection) -> None:
        """Tell through a channel, on which nothing ever comes back."""
        self._channel = channel

    def tell(self, message: Message) -> None:
        """Send a message, where somebody is still there to read it."""
        with suppress(OSError):
            self._channel.send(message)

    def on_end(self, loop: asyncio.AbstractEventLoop, server: WorkerServer) -> None:
        """Stop a server when the parent has ended."""

        def stop() -> None:
            loop.remove_reader(self._channel.fileno())
            server.should_exit = True

        loop.add_reader(self._channel.fileno(), stop)


class WorkerServer(DrainingServer):
    """Serves as a gateway of one process does, and ends with its parent."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway, parent: Parent) -> None:
        super().__init__(config, gateway.drain)
        self._parent = parent

    @property
    def handlers(self) -> Mapping[signal.Signals, Handler]:
        """What is done at which signal; to be told twice to drain is nothing new."""
        return {signal.SIGTERM: self._drain_at, signal.SIGQUIT: self._end_at}

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say so."""
        await super().startup(sockets)
        self._parent.on_end(asyncio.get_running_loop(), self)
        self._parent.tell(Ready())

    def _drain_at(self, _signal: int, _frame: FrameType | None) -> None:
        self.should_exit = True

    def _end_at(self, _signal: int, _frame: FrameType | None) -> None:
        self.should_exit = self.force_exit = True
