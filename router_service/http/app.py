"""The gateway as an app."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from router_service import __version__
from router_service.http import (
    admin,
    chat,
    decisions,
    errors,
    feedback,
    health,
    metrics,
    models,
    other,
    responses,
    schemas,
)
from router_service.http.accounting import Accounting
from router_service.http.admission import Admission
from router_service.http.auth import PAGE, Authentication
from router_service.http.shortcut import Shortcut
from router_service.lifecycle.gateway import Gateway
from router_service.lifecycle.reloading import Origin
from router_service.requests.planning import DecidingRouter
from router_service.settings import Settings
from router_service.ui import pages


def create_app(settings: Settings, router: DecidingRouter, origin: Origin | None = None) -> FastAPI:
    """Make the app of a router that is ready to decide; its life ends with its connections.

    `origin` is what it can be made anew of, without which it is not reloaded.

    Raises ConfigError where an arm of the router's artifact has no model, or a name in the
    settings is of nothing.
    """
    gateway = Gateway(settings, router, origin)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with gateway.running():
            yield

    app = FastAPI(
        title="Switchcraft",
        version=__version__,
        lifespan=lifespan,
        # These pages load their scripts from a third party.
        docs_url=None,
        redoc_url=None,
        # A redirect would be made of the Host header, which is the client's word.
        redirect_slashes=False,
        responses=schemas.ERRORS,
    )
    app.state.gateway = gateway
    hot = (chat.routes, responses.routes, other.routes)
    app.add_middleware(Shortcut, routes=[route for router in hot for route in router.routes])
    # The last is the outermost: who may not come in takes no slot.
    app.add_middleware(Admission, slots=gateway.slots, drain=gateway.drain, metrics=gateway.metrics)
    app.add_middleware(
        Authentication, access=lambda: gateway.engine.access, metrics=gateway.metrics
    )
    app.add_middleware(pages.PageHeaders)
    app.add_middleware(Accounting, recorder=gateway.recorder, tracer=gateway.tracer)
    # The last takes every path under /v1/ that none before it does.
    for module in (
        chat,
        responses,
        models,
        decisions,
        feedback,
        health,
        metrics,
        admin,
        pages,
        other,
    ):
        app.include_router(module.routes)
    app.mount(f"{PAGE}/static", pages.static)
    errors.register(app)
    return app
