"""What a process serves, in a form that another process can be given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from fastapi import FastAPI

from router_service.core.artifact import MANIFEST, read_manifest
from router_service.http.app import create_app
from router_service.lifecycle.building import EngineBuilder
from router_service.lifecycle.reloading import Origin
from router_service.lifecycle.starting import first_router
from router_service.settings import Settings, read_settings


@dataclass(frozen=True, slots=True)
class Job:
    """Where the configuration is, and what the command line says in its place."""

    config: Path | None = None
    host: str | None = None
    port: int | None = None
    sandbox_url: str | None = None
    """Who plays every model where the configuration names none."""

    def played_by(self, sandbox_url: str | None) -> Job:
        """Return the same job with a sandbox that is running, or none."""
        return replace(self, sandbox_url=sandbox_url)

    def read(self) -> Settings:
        """Read the configuration as it is now; raises ConfigError."""
        return read_settings(self.config, host=self.host, port=self.port)

    def app(self, tell_others: Callable[[], None] = lambda: None) -> FastAPI:
        """Make the app; `tell_others` has the other workers reload. Raises as `create_app`."""
        settings = self.read()
        complete = self._complete(settings)
        builder = EngineBuilder()
        router, publication = first_router(complete, builder)
        has_file = bool(settings.models)
        origin = Origin(self.read, builder, publication, has_file, tell_others)
        return create_app(complete, router, origin)

    def _complete(self, settings: Settings) -> Settings:
        if settings.models or self.sandbox_url is None:
            return settings
        arms = read_manifest(settings.router.artifact / MANIFEST).arms
        return Settings.sandbox(self.sandbox_url, arms, server=settings.server)
