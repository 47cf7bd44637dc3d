"""Keeps several processes that serve a port together.

uvicorn's own supervisor makes its own servers, which do not drain, answers SIGHUP by a restart of
them all, and takes no second signal while it waits.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker

from router_service import signals
from router_service.core.errors import ConfigError, SwitchcraftError
from router_service.http.job import Job
from router_service.http.worker import Message, Ready, Reloaded, Unfit, work
from router_service.settings import ServerSettings
from router_service.telemetry.sharing import forget

BACKLOG = 2048
"""Connections that wait to be accepted, as uvicorn has it."""

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
"""Before a worker is started in place of one that never served."""

# A fork would take along the sandbox's thread, and locks that nobody is left to release.
_SPAWN = multiprocessing.get_context("spawn")
_log = logging.getLogger("switchcraft.supervisor")


class Worker:
    """One process, as its parent sees it; to be made on the event loop."""

    def __init__(
        self, job: Job, listeners: Sequence[socket.socket], on_reload: Callable[[Worker], None]
    ) -> None:
        """Start it; `on_reload` is called when it has reloaded on request."""
        self._on_reload = on_reload
        self._channel, theirs = _SPAWN.Pipe()
        # A daemon is ended with its parent, where that fails.
        self._process = _SPAWN.Process(target=work, args=(job, listeners, theirs), daemon=True)
        with signals.blocked_in_children():
            # Before the worker: starting it unblocks SIGINT.
            resource_tracker.ensure_running()
        with signals.blocked_in_children():
            self._process.start()
        theirs.close()
        self._owes_reload = False
        self.is_ready = False
        self.problem = "a worker ended before it served; its log says why"
        self.settled = asyncio.Event()
        """Set once it serves, or has ended."""
        self.ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._channel.fileno(), self._read)
        self._loop.add_reader(self._process.sentinel, self._end)

    @property
    def id(self) -> int:
        """The process's."""
        return self._process.pid or 0

    @property
    def status(self) -> int | None:
        """What the process ended with: minus a signal's number where one ended it."""
        return self._process.exitcode

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self._process.is_alive():
            os.kill(self.id, number)

    def reload(self) -> None:
        """Have it reload: now, or when it serves."""
        if self.is_ready:
            self.send(signal.SIGHUP)
        else:
            self._owes_reload = True

    def _read(self) -> bool:
        """Take a message; return whether there may be another."""
        try:
            message: Message = self._channel.recv()
        except (EOFError, OSError):
            self._loop.remove_reader(self._channel.fileno())
            return False
        match message:
            case Ready():
                self._served()
            case Unfit(reason):
                self.problem = reason
            case Reloaded():
                self._on_reload(self)
        return True

    def _served(self) -> None:
        self.is_ready = True
        self.settled.set()
        _log.info("worker %s serves", self.id)
        if self._owes_reload:
            self.send(signal.SIGHUP)

    def _end(self) -> None:
        self._loop.remove_reader(self._process.sentinel)
        while self._read():
            pass  # its last words come before the end of the channel
        self._process.join()
        self._channel.close()
        forget(self.id)
        self.settled.set()
        self.ended.set()


class Supervisor:
    """Starts workers, starts others in their place, and passes on what it is told."""

    def __init__(
        self, job: Job, listeners: Sequence[socket.socket], workers: int, *, has_file: bool
    ) -> None:
        """Prepare; where there is no file to read again, SIGHUP stops, as a terminal means it."""
        self._job = job
        self._listeners = listeners
        self._count = workers
        self._has_file = has_file
        self._workers: set[Worker] = set()
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Serve until told to stop, and then until the last worker has drained.

        Raises SwitchcraftError where the first worker cannot serve, with its reason.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self._reload if self._has_file else self._stop)
        if signals.is_stopping():
            return
        # No worker has read the file yet, so that an earlier SIGHUP asks for nothing more.
        signals.take_hang_up()
        first = self._start()
        await first.settled.wait()
        if not first.is_ready and not self._stopping.is_set():
            raise SwitchcraftError(first.problem)
        others = (self._start() for _ in range(self._count - 1) if not self._stopping.is_set())
        await asyncio.gather(*map(self._keep, (first, *others)))

    def _start(self) -> Worker:
        worker = Worker(self._job, self._listeners, on_reload=self._reload)
        self._workers.add(worker)
        return worker

    async def _keep(self, worker: Worker) -> None:
        """Start another worker in place of one that ends, unless told to stop."""
        pause_s = FIRST_PAUSE_S
        while True:
            await worker.ended.wait()
            self._workers.discard(worker)
            if self._stopping.is_set():
                return
            pause_s = FIRST_PAUSE_S if worker.is_ready else min(2 * pause_s, LONGEST_PAUSE_S)
            _log.error("worker %s ended with status %s", worker.id, worker.status)
            if not worker.is_ready:
                _log.error("%s; another is started in %.0f s", worker.problem, pause_s)
                await self._wait(pause_s)
            if self._stopping.is_set():
                return
            worker = self._start()

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return

    def _stop(self) -> None:
        """Have all workers drain; told again, have them end at once."""
        number = signal.SIGQUIT if self._stopping.is_set() else signal.SIGTERM
        self._stopping.set()
        for worker in self._workers:
            worker.send(number)

    def _reload(self, but: Worker | None = None) -> None:
        for worker in self._workers - {but}:
            worker.reload()


@contextmanager
def listening(server: ServerSettings, source: str) -> Iterator[tuple[socket.socket, ...]]:
    """Listen at each address of the configured host; raises ConfigError where that fails."""
    with ExitStack() as stack:
        try:
            listeners = tuple(stack.enter_context(made) for made in _listeners(server))
        except OSError as exc:
            problem = f"cannot listen on {server.host}:{server.port}: {exc.strerror}"
            raise ConfigError(source, "server.port", problem) from exc
        yield listeners


def _listeners(server: ServerSettings) -> Iterator[socket.socket]:
    kind = socket.SOCK_STREAM
    for family, _, _, _, address in socket.getaddrinfo(server.host, server.port, type=kind):
        yield socket.create_server(address[:2], family=family, backlog=BACKLOG)
