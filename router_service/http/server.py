"""Runs the gateway on a port."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from router_service import signals
from router_service.accounts.access import listening_host, warn_of_open_redis
from router_service.core.memory import bound_heap
from router_service.http.job import Job
from router_service.http.listening import DrainingServer, uvicorn_config
from router_service.http.supervisor import Supervisor, listening
from router_service.sandbox.server import run_in_thread
from router_service.settings import ServerSettings, Settings
from router_service.telemetry.logs import configure_logging
from router_service.telemetry.metrics import SHARED_DIRECTORY
from router_service.telemetry.sharing import shared_values

_log = logging.getLogger("switchcraft.server")


def serve(config: Path | None = None, *, host: str | None = None, port: int | None = None) -> None:
    """Serve until the process is asked to stop; without a configuration, from a sandbox.

    Raises ConfigError and ArtifactError, which say what to do, before anything is served.
    """
    bound_heap()
    configure_logging()
    job = Job(config, host, port)
    settings = job.read()
    configure_logging(settings.logging.level)
    if not settings.models:
        signals.release_hang_up()  # there is no file to read again
    for setting in settings.without_effect:
        _log.warning("%s: %s", settings.source, setting)
    server = settings.server.model_copy(update={"host": listening_host(settings)})
    warn_of_open_redis(server)
    is_shared = server.workers > 1 or SHARED_DIRECTORY in os.environ
    with shared_values() if is_shared else nullcontext(), sandbox_for(settings) as sandbox_url:
        job = job.played_by(sandbox_url)
        if server.workers > 1:
            _serve_together(job, settings, server)
        else:
            _serve_alone(job, server)


def _serve_alone(job: Job, server: ServerSettings) -> None:
    app = job.app()
    if signals.is_stopping():
        return
    _log.info("serving at http://%s:%s/v1", server.host, server.port)
    DrainingServer(uvicorn_config(app, server), app.state.gateway.drain).run()


def _serve_together(job: Job, settings: Settings, server: ServerSettings) -> None:
    with listening(server, settings.source) as listeners:
        supervisor = Supervisor(job, listeners, server.workers, has_file=bool(settings.models))
        asyncio.run(supervisor.run())


@contextmanager
def sandbox_for(settings: Settings) -> Iterator[str | None]:
    """Yield the address of a sandbox for settings that name no models, and say so; else None."""
    if settings.models:
        yield None
        return
    with run_in_thread() as base_url:
        _log.warning(
            "no upstream is configured: a sandbox at %s plays all models, and no real model is "
            "asked; name yours in a file, and give it with --config",
            base_url,
        )
        yield base_url
