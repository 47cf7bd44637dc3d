"""Runs the gateway on a port."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from router_service.api.app import create_app
from router_service.api.pool import Pool, arm_prices
from router_service.core.artifact import Artifact
from router_service.router import Router
from router_service.sandbox.server import run_in_thread
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
    settings = read_settings(config, host=host, port=port)
    for setting in settings.without_effect:
        _log.warning("%s: %s", settings.source, setting)
    artifact = Artifact.load(settings.router.artifact)
    with with_upstream(settings, artifact.manifest.arms) as complete:
        pool = Pool.build(complete, artifact.manifest)
        router = Router(artifact, prices=arm_prices(complete), arms=pool.by_arm)
        router.check_canaries()
        app = create_app(complete, router)
        _log.info("serving at http://%s:%s/v1", complete.server.host, complete.server.port)
        uvicorn.Server(uvicorn_config(app, complete.server)).run()


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
        http="httptools",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=server.shutdown_timeout_s,
    )
