"""Runs several worker processes that serve one port, and replaces those that end.

uvicorn's own supervisor is not used: its servers do not drain, it restarts all workers at SIGHUP,
and it ignores a second signal while it waits.

The parent controls workers by signals: SIGTERM drains, SIGQUIT stops at once, SIGHUP reloads.
Workers ignore SIGINT, because a terminal sends it to the parent and to the workers. Workers report
to the parent over a pipe, and drain if the parent's end of the pipe closes.

The parent loads the router and forks its workers, which share that memory and start faster: without
it, each further worker would take 150 MB and a second. A forked process has none of its parent's
threads, but all of its locks. So workers are started anew if a sandbox runs in a thread of the
parent, and a router on a GPU is loaded by each worker.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess, SpawnProcess
from pathlib import Path
from types import FrameType

import uvicorn

from router_service import signals
from router_service.core.errors import SwitchcraftError
from router_service.core.resources import bound_heap
from router_service.runtime.engine import EngineBuilder
from router_service.runtime.gateway import Gateway
from router_service.serving.accepting import ConnectionCounts
from router_service.serving.server import (
    DrainingServer,
    ServeOptions,
    SignalHandler,
    log_address,
    uvicorn_config,
)
from router_service.settings import ServerSettings
from router_service.store.parent_process import serve_workers
from router_service.telemetry.logs import configure_logging
from router_service.telemetry.metrics import forget_worker

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
"""Limits of the pause before a worker that ended before it served is replaced. The pause doubles
with each failure."""

_STANDARD_ERROR = 2
_FORK = multiprocessing.get_context("fork")
_SPAWN = multiprocessing.get_context("spawn")
_log = logging.getLogger("switchcraft.supervisor")


@dataclass(frozen=True, slots=True)
class Ready:
    """Message that a worker sends once it serves."""


@dataclass(frozen=True, slots=True)
class StartFailed:
    """Message that a worker sends before it exits because it cannot serve."""

    reason: str


@dataclass(frozen=True, slots=True)
class Reloaded:
    """Message that a worker sends after it has reloaded because a client asked it to."""


WorkerMessage = Ready | StartFailed | Reloaded


def run_workers(
    options: ServeOptions,
    listeners: Sequence[socket.socket],
    server: ServerSettings,
    *,
    has_file: bool,
) -> None:
    """Serve with `server.workers` processes until asked to stop; raises SwitchcraftError.

    Without a configuration file, SIGHUP stops the gateway.
    """
    loaded = None
    # On macOS, system libraries do not work in a forked process.
    if sys.platform == "linux" and options.sandbox_url is None:
        loaded = options.load_router()
        # Later collections would write to all objects, and so copy the memory that workers share.
        gc.collect()
        gc.freeze()
    gc.enable()  # the command line has disabled it
    asyncio.run(Supervisor(options, listeners, server, loaded, has_file=has_file).run())


# The worker process.


def run_worker(
    options: ServeOptions,
    listeners: Sequence[socket.socket],
    channel: Connection,
    number: int,
    loaded: EngineBuilder | None = None,
    open_files: Sequence[int] = (),
) -> None:
    """Serve in a worker process until the parent says to stop; `number` is its place.

    A forked worker has the parent's `loaded` routers, and the descriptors of its `open_files`.
    """
    signal.set_wakeup_fd(-1)  # a forked worker's signals would wake the parent's event loop
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Ignore SIGHUP until the worker serves: the worker has yet to read the configuration.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signals.unblock()
    _detach(open_files, {channel.fileno(), *(listener.fileno() for listener in listeners)})
    bound_heap()
    configure_logging()
    parent = ParentChannel(channel)
    try:
        logging_settings = options.read_settings().logging
        configure_logging(logging_settings.level, logging_settings.format)
        app = options.create_app(
            lambda: parent.send(Reloaded()), announces=number == 0, loaded=loaded
        )
    except SwitchcraftError as exc:
        parent.send(StartFailed(str(exc)))
        sys.exit(1)
    gateway: Gateway = app.state.gateway
    config = uvicorn_config(app, gateway.server)
    assert options.workers_directory is not None  # noqa: S101 - for types; the parent sets it
    counts = ConnectionCounts(options.workers_directory, gateway.server.workers)
    WorkerServer(config, gateway, parent, counts, number).run(list(listeners))


def _detach(open_files: Sequence[int], used: Collection[int]) -> None:
    """Close the parent's files in a forked worker, except the used ones and the standard streams.

    Otherwise connections between the parent and other workers would stay open after either of them
    has ended. The descriptors then refer to the null device, because objects of the parent still
    have them, and would later close a file of this worker that got the same number.
    """
    with Path(os.devnull).open("r+b") as null:
        for descriptor in open_files:
            if descriptor > _STANDARD_ERROR and descriptor not in used:
                os.dup2(null.fileno(), descriptor, inheritable=False)


class ParentChannel:
    """Worker's end of the pipe to the parent process. The parent never sends anything."""

    def __init__(self, channel: Connection) -> None:
        self._channel = channel

    def send(self, message: WorkerMessage) -> None:
        """Send a message, unless the parent has ended."""
        with suppress(OSError):
            self._channel.send(message)

    def stop_when_closed(self, loop: asyncio.AbstractEventLoop, server: WorkerServer) -> None:
        """Make the server drain when the parent has ended."""

        def stop() -> None:
            loop.remove_reader(self._channel.fileno())
            server.should_exit = True

        loop.add_reader(self._channel.fileno(), stop)


class WorkerServer(DrainingServer):
    """Server of a worker process, which drains if its parent ends."""

    def __init__(
        self,
        config: uvicorn.Config,
        gateway: Gateway,
        parent: ParentChannel,
        counts: ConnectionCounts,
        number: int,
    ) -> None:
        """Take the connections of all workers and the place of this worker among them."""

        def tell_parent() -> None:
            parent.stop_when_closed(asyncio.get_running_loop(), self)
            parent.send(Ready())

        super().__init__(config, gateway.drain, tell_parent, counts, number)

    @property
    def handlers(self) -> Mapping[signal.Signals, SignalHandler]:
        """The handlers while serving: each SIGTERM only drains, and SIGQUIT stops at once."""

        def drain(_signal: int, _frame: FrameType | None) -> None:
            self.should_exit = True

        def stop(_signal: int, _frame: FrameType | None) -> None:
            self.should_exit = self.force_exit = True

        return {signal.SIGTERM: drain, signal.SIGQUIT: stop}


# The parent process.


class Worker:
    """Parent's view of one worker process; must be created on the event loop."""

    def __init__(
        self,
        options: ServeOptions,
        listeners: Sequence[socket.socket],
        number: int,
        loaded: EngineBuilder | None,
        on_reload: Callable[[Worker], None],
    ) -> None:
        """Start the process; `on_reload` is called after a client made it reload.

        With the parent's `loaded` routers, the process is forked.
        """
        self.number = number
        """The worker's place: a number from 0 that no other worker has at the same time."""
        self._on_reload = on_reload
        self._channel, workers_end = _SPAWN.Pipe()
        # As a daemon, the process ends with its parent even if closing the pipe does not end it.
        if loaded is not None:
            listed = list(Path("/proc/self/fd").iterdir())
            # Listing opened a file that is closed now: the process's own pipes may get its number.
            open_files = [int(each.name) for each in listed if each.is_symlink()]
            self._process: ForkProcess | SpawnProcess = _FORK.Process(
                target=run_worker,
                args=(options, listeners, workers_end, number, loaded, open_files),
                daemon=True,
            )
        else:
            self._process = _SPAWN.Process(
                target=run_worker, args=(options, listeners, workers_end, number), daemon=True
            )
            with signals.blocked_in_children():
                # Start the tracker first, because starting the tracker unblocks SIGINT.
                resource_tracker.ensure_running()
        with signals.blocked_in_children():
            self._process.start()
        workers_end.close()
        self._is_reload_pending = False
        self.is_ready = False
        self.start_error = "a worker ended before it served; the cause is in the log above"
        self.settled = asyncio.Event()
        """Set once the worker serves or has ended."""
        self.ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._channel.fileno(), self._read_message)
        self._loop.add_reader(self._process.sentinel, self._end)

    @property
    def id(self) -> int:
        """The process id."""
        return self._process.pid or 0

    @property
    def exit_status(self) -> int | None:
        """The exit status; negative if a signal ended the process."""
        return self._process.exitcode

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        if self._process.is_alive():
            os.kill(self.id, number)

    def reload(self) -> None:
        """Make the worker reload now, or once it serves."""
        if self.is_ready:
            self.send(signal.SIGHUP)
        else:
            self._is_reload_pending = True

    def _read_message(self) -> bool:
        """Handle one message; return whether another one may follow."""
        try:
            message: WorkerMessage = self._channel.recv()
        except (EOFError, OSError):
            self._loop.remove_reader(self._channel.fileno())
            return False
        match message:
            case Ready():
                self.is_ready = True
                self.settled.set()
                _log.info("worker %s is ready", self.id)
                if self._is_reload_pending:
                    self.send(signal.SIGHUP)
            case StartFailed(reason):
                self.start_error = reason
            case Reloaded():
                self._on_reload(self)
        return True

    def _end(self) -> None:
        self._loop.remove_reader(self._process.sentinel)
        while self._read_message():
            pass  # messages that the worker sent before it ended
        self._process.join()
        self._channel.close()
        forget_worker(self.id)
        self.settled.set()
        self.ended.set()


class Supervisor:
    """Starts workers, replaces those that end, and forwards signals to them."""

    def __init__(
        self,
        options: ServeOptions,
        listeners: Sequence[socket.socket],
        server: ServerSettings,
        loaded: EngineBuilder | None,
        *,
        has_file: bool,
    ) -> None:
        """Prepare to run; without a configuration file, SIGHUP stops the gateway.

        With `loaded` routers, workers are forked.
        """
        self._options = options
        self._listeners = listeners
        self._server = server
        self._loaded = loaded
        self._has_file = has_file
        self._workers: set[Worker] = set()
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Serve until asked to stop, and return after the last worker has drained.

        Raises SwitchcraftError with the reason if the first worker cannot serve.
        """
        async with serve_workers(self._server.store_limits) as directory:
            self._options = replace(self._options, workers_directory=directory)
            await self._run(ConnectionCounts(directory, self._server.workers))

    async def _run(self, connections: ConnectionCounts) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self._reload if self._has_file else self._stop)
        if signals.is_stopping():
            return
        # No worker has read the configuration yet, so an earlier SIGHUP is obsolete.
        signals.take_hang_up()
        first = self._start_worker()
        await first.settled.wait()
        if not first.is_ready and not self._stopping.is_set():
            raise SwitchcraftError(first.start_error)
        if first.is_ready:
            log_address(self._server, self._listeners)
        others = (
            self._start_worker()
            for _ in range(self._server.workers - 1)
            if not self._stopping.is_set()
        )
        running = (self._keep_running(worker, connections) for worker in (first, *others))
        await asyncio.gather(*running)

    def _start_worker(self) -> Worker:
        taken = {worker.number for worker in self._workers}
        number = next(number for number in range(self._server.workers) if number not in taken)
        worker = Worker(
            self._options, self._listeners, number, self._loaded, on_reload=self._reload
        )
        self._workers.add(worker)
        return worker

    async def _keep_running(self, worker: Worker, connections: ConnectionCounts) -> None:
        """Replace a worker whenever it ends, until asked to stop."""
        pause_s = FIRST_PAUSE_S
        while True:
            await worker.ended.wait()
            self._workers.discard(worker)
            connections.forget(worker.number)
            if self._stopping.is_set():
                return
            pause_s = FIRST_PAUSE_S if worker.is_ready else min(2 * pause_s, LONGEST_PAUSE_S)
            _log.error("worker %s ended with status %s", worker.id, worker.exit_status)
            if not worker.is_ready:
                _log.error("%s; starting another worker in %.0f s", worker.start_error, pause_s)
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._stopping.wait()
            if self._stopping.is_set():
                return
            worker = self._start_worker()

    def _stop(self) -> None:
        """Make all workers drain; at the second signal, make them stop at once."""
        number = signal.SIGQUIT if self._stopping.is_set() else signal.SIGTERM
        self._stopping.set()
        for worker in self._workers:
            worker.send(number)

    def _reload(self, already_reloaded: Worker | None = None) -> None:
        for worker in self._workers - {already_reloaded}:
            worker.reload()
