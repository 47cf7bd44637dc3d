"""Runs the gateway: uvicorn with our HTTP protocol and a graceful shutdown."""

from __future__ import annotations

import gc
import logging
import math
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

import uvicorn
from fastapi import FastAPI

from router_service import signals
from router_service.access import permitted_listen_host, warn_about_open_redis
from router_service.core.artifact import MANIFEST, read_manifest
from router_service.core.resources import bound_heap
from router_service.http.app import create_app
from router_service.http.protocol import ConnectionLimits, protocol_with_limits
from router_service.lifecycle.engine import EngineBuilder
from router_service.lifecycle.overload import Drain
from router_service.lifecycle.reloading import ReloadSource, load_first_router
from router_service.sandbox.app import run_in_thread
from router_service.settings import ServerSettings, Settings, read_settings
from router_service.telemetry.logs import configure_logging
from router_service.telemetry.metrics import SHARED_DIRECTORY, shared_metrics_directory

KEEP_ALIVE_S = 75
"""Time until the server closes an idle connection. It is longer than clients wait, so that clients
close their connections first."""

SWITCH_INTERVAL_S = 0.0005
"""Longest time that a decision's thread keeps the interpreter lock while the event loop waits.
With Python's default of 5 ms, a health check took 3 times as long during heavy decisions, because
the event loop needs the lock for each read and write. Decisions use as much processor time as with
5 ms."""

SignalHandler = Callable[[int, FrameType | None], None]

_log = logging.getLogger("switchcraft.server")


def serve(config: Path | None = None, *, host: str | None = None, port: int | None = None) -> None:
    """Serve until the process is asked to stop; without a configuration, use the sandbox.

    Raises ConfigError or ArtifactError, whose messages contain the remedy, before it serves.
    """
    bound_heap()
    configure_logging()
    options = ServeOptions(config, host, port)
    settings = options.read_settings()
    configure_logging(settings.logging.level)
    if not settings.models:
        signals.release_hang_up()  # SIGHUP cannot reload without a configuration file
    for setting in settings.unsupported:
        _log.warning("%s: %s", settings.source, setting)
    server = settings.server.model_copy(update={"host": permitted_listen_host(settings)})
    warn_about_open_redis(server)
    shares_metrics = server.workers > 1 or SHARED_DIRECTORY in os.environ
    with (
        shared_metrics_directory() if shares_metrics else nullcontext(),
        sandbox_for(settings) as sandbox_url,
    ):
        options = replace(options, sandbox_url=sandbox_url)
        if server.workers > 1:
            # Imported here, because workers.py imports this module.
            from router_service.http.workers import run_workers  # noqa: PLC0415

            run_workers(options, settings, server)
            return
        app = options.create_app()
        if signals.is_stopping():
            return
        _log.info("serving at http://%s:%s/v1", server.host, server.port)
        DrainingServer(uvicorn_config(app, server), app.state.gateway.drain).run()


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Options of `switchcraft serve`, which can be sent to a worker process."""

    config: Path | None = None
    host: str | None = None
    port: int | None = None
    sandbox_url: str | None = None
    """Address of the sandbox that answers for every model if no models are configured."""

    def read_settings(self) -> Settings:
        """Read the configuration file as it is now; raises ConfigError."""
        return read_settings(self.config, host=self.host, port=self.port)

    def create_app(self, reload_other_workers: Callable[[], None] = lambda: None) -> FastAPI:
        """Create the app from the configuration; raises ConfigError and ArtifactError."""
        settings = configured = self.read_settings()
        has_file = bool(configured.models)
        if not has_file and self.sandbox_url is not None:
            arms = read_manifest(configured.router.artifact / MANIFEST).arms
            settings = Settings.sandbox(
                self.sandbox_url, arms, server=configured.server, history=configured.history
            )
        builder = EngineBuilder()
        router, publication = load_first_router(settings, builder)
        source = ReloadSource(
            self.read_settings, builder, publication, has_file, reload_other_workers
        )
        return create_app(settings, router, source)


@contextmanager
def sandbox_for(settings: Settings) -> Iterator[str | None]:
    """Run a sandbox and yield its address if the settings name no models; otherwise yield None."""
    if settings.models:
        yield None
        return
    with run_in_thread() as base_url:
        _log.warning(
            "no upstream is configured: a sandbox at %s answers for every model, and no real model "
            "is called; configure models in a YAML file and pass it with --config",
            base_url,
        )
        yield base_url


class DrainingServer(uvicorn.Server):
    """uvicorn server that drains at the first stop signal, and stops at once at the second.

    It exits with status 0. It accepts connections while it drains, so that probes are answered and
    a late client gets an error with the cause.
    """

    def __init__(self, config: uvicorn.Config, drain: Drain) -> None:
        super().__init__(config)
        self._drain = drain

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, and exclude the objects that exist now from garbage collection."""
        # A full collection visits 112,000 objects, which stops the event loop for 73 ms. It skips
        # frozen objects. Reference counting still frees the objects that a reload replaces.
        gc.freeze()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        await super().startup(sockets)

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
        """Close the connections; until the drain's time is over, clients can read their answers."""
        if self.force_exit:
            for connection in self.server_state.connections:
                connection.transport.abort()
        self.config.timeout_graceful_shutdown = 1 + math.ceil(self._drain.remaining_s)
        await super().shutdown(sockets)

    @property
    def handlers(self) -> Mapping[signal.Signals, SignalHandler]:
        """The signal handlers while serving."""
        return {signal.SIGINT: self.handle_exit, signal.SIGTERM: self.handle_exit}

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals while serving.

        uvicorn's own method raises the signals again afterwards, so that the process would end with
        a failure status after a successful drain.
        """
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
    """Return uvicorn's configuration: our protocol and logs, and no trust in proxy headers."""
    limits = ConnectionLimits(
        max_header_bytes=server.max_header_bytes,
        header_timeout_s=server.header_timeout_s,
        write_timeout_s=server.write_timeout_s,
        max_connections=_max_connections(server.max_connections),
    )
    return uvicorn.Config(
        app,
        host=server.host,
        port=server.port,
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
