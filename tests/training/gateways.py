"""A gateway that follows its publication, for tests of commands that publish."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx

from router_service.runtime.engine import EngineBuilder
from router_service.runtime.reloading import ReloadSource
from router_service.serving.app import create_app
from router_service.settings import read_settings
from tests.serving import served


def gateway(config: Path) -> AbstractContextManager[str]:
    """Return a context that serves a configuration, as `serve` does, and yields its address."""
    settings, builder = read_settings(config), EngineBuilder()
    router, publication = builder.first_router(settings)
    source = ReloadSource(lambda: read_settings(config), builder, publication)
    return served(create_app(settings, router, source))


def published(http: httpx.Client) -> dict[str, Any]:
    """Return the publication that a gateway serves."""
    found: dict[str, Any] = http.get("/admin/status").json()["publication"]
    return found
