"""Creates the ASGI app of the gateway: its routes and middleware."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI

from router_service import __version__
from router_service.http import counting, errors, inference, passing, resources, schemas
from router_service.http.auth import UI_PATH, Authentication
from router_service.http.middleware import Accounting, Admission, Shortcut
from router_service.lifecycle.gateway import Gateway
from router_service.lifecycle.reloading import ReloadSource
from router_service.requests.planning import DecidingRouter
from router_service.settings import Settings
from router_service.ui import pages, traffic


def create_app(
    settings: Settings,
    router: DecidingRouter,
    source: ReloadSource | None = None,
    workers_directory: Path | None = None,
) -> FastAPI:
    """Create the app for a router that is ready to decide.

    The end of its lifespan closes all connections. Without a `source` the app cannot be reloaded.
    `workers_directory` is the directory that the workers of this gateway share; None if there is
    one process. Raises ConfigError if no model is configured for an arm of the router's artifact,
    or if a setting refers to an unknown name.
    """
    gateway = Gateway(settings, router, source, workers_directory)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with gateway.running():
            yield

    app = FastAPI(
        title="Switchcraft",
        version=__version__,
        lifespan=lifespan,
        # FastAPI's documentation pages load scripts from a third party.
        docs_url=None,
        redoc_url=None,
        # A redirect would be built from the Host header, which the client controls.
        redirect_slashes=False,
        responses=schemas.ERRORS,
        exception_handlers=dict.fromkeys(errors.HANDLED, errors.respond),
    )
    app.state.gateway = gateway
    app.add_middleware(Shortcut, routes=[*inference.routes.routes, *counting.routes.routes])
    # The middleware added last runs first, so that a request without a valid key takes no slot.
    app.add_middleware(Admission, slots=gateway.slots, drain=gateway.drain, metrics=gateway.metrics)
    app.add_middleware(
        Authentication, access=lambda: gateway.engine.access, metrics=gateway.metrics
    )
    tracer = gateway.tracing.tracer if gateway.tracing else None
    app.add_middleware(Accounting, recorder=gateway.recorder, tracer=tracer)
    for module in (inference, counting, passing, resources, pages, traffic):
        app.include_router(module.routes)
    app.include_router(passing.catch_all)
    app.mount(f"{UI_PATH}/static", pages.static)
    return app
