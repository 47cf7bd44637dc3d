"""Runs the gateway on a port."""

from __future__ import annotations

import logging
import math
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType

import uvicorn
from fastapi import FastAPI

from router_service.api.app import create_app
from router_service.api.protocol import Limits, bounded
from router_service.core.artifact import Artifact
from router_service.sandbox.server import run_in_thread
from router_service.serving.access import listening_host
from router_service.serving.building import EngineBuilder
from router_service.serving.draining import Drain
from router_service.serving.reloading import Origin
from router_service.serving.starting import first_router
from router_service.settings import ServerSettings, Settings, read_settings
from router_service.telemetry.logs import configure_logging

KEEP_ALIVE_S = 75
"""Longer than clients keep idle connections: it is they who close them, not we under them."""

_log = logging.getLogger("switchcraft.server")


def serve(config: Path | None = None, *, host: str | None = None, port: int | None = None) -> None:
    """Serve until the process is asked to stop; without a configuration, from a sandbox.

    Raises ConfigError and ArtifactError, which say what to do, before anything listens.
    """
    configure_logging()
    read = partial(read_settings, config, host=host, port=port)
    settings = read()
    configure_logging(settings.logging.level)
    for setting in settings.without_effect:
        _log.warning("%s: %s", settings.source, setting)
    server = settings.server.model_copy(update={"host": listening_host(settings)})
    artifact = Artifact.load(settings.router.artifact)
    with with_upstream(settings, artifact.manifest.arms) as complete:
        builder = EngineBuilder()
        router, publication = first_router(complete, builder)
        origin = Origin(read, builder, publication, has_file=bool(settings.models))
        app = create_app(complete, router, origin)
        _log.info("serving at http://%s:%s/v1", server.host, server.port)
        DrainingServer(uvicorn_config(app, server), app.state.gateway.drain).run()


class DrainingServer(uvicorn.Server):
    """Serves until a first signal, drains, and ends with status 0; a second one ends it at once.

    While it drains it listens on: probes must get their answer, and who comes late is told so.
    """

    def __init__(self, config: uvicorn.Config, drain: Drain) -> None:
        super().__init__(config)
        self._drain = drain

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

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take signals while serving; uvicorn's own raises them again, and no end is a good one."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        signals = (signal.SIGINT, signal.SIGTERM)
        originals = {number: signal.signal(number, self.handle_exit) for number in signals}
        try:
            yield
        finally:
            for number, handler in originals.items():
                signal.signal(number, handler)


@contextmanager
def with_upstream(settings: Settings, arms: tuple[str, ...]) -> Iterator[Settings]:
    """Yield the settings; those that name no models play every arm on a sandbox, and say so."""
    if settings.models:
        yield settings
        return
    with run_in_thread() as base_url:
        _log.warning(
            "no upstream is configured: a sandbox at %s plays all models, and no real model is "
            "asked; name yours in a file, and give it with --config",
            base_url,
        )
        yield Settings.sandbox(base_url, arms, server=settings.server)


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
    )
