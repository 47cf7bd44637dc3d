"""Creates the ASGI app of the gateway: its routes behind `Front`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cached_property

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from router_service import __version__
from router_service.apis.registry import APIS
from router_service.http import (
    accounts,
    counting,
    inference,
    passing,
    request_lists,
    schemas,
    usage,
)
from router_service.http import error_responses as errors
from router_service.http import management as resources
from router_service.http.auth import UI_PATH
from router_service.http.front import Front
from router_service.router import Router
from router_service.runtime.gateway import Gateway
from router_service.runtime.reloading import ReloadSource
from router_service.settings import Settings
from router_service.ui import pages, requests, traffic


class _App(FastAPI):
    """FastAPI app behind `Front`.

    FastAPI calls added middleware after five layers of its own, which our routes for inference do
    not need and which take 0.01 ms of CPU time.
    """

    @cached_property
    def entry(self) -> ASGIApp:
        """What gets every request first."""
        return super().__call__

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a connection."""
        scope["app"] = self
        await self.entry(scope, receive, send)


def create_app(
    settings: Settings,
    router: Router,
    source: ReloadSource | None = None,
) -> FastAPI:
    """Create the app for a router that is ready to decide.

    The end of its lifespan closes all connections. Without a `source` the app cannot be reloaded.
    Raises ConfigError if no model is configured for an arm of the router's artifact, or if a
    setting refers to an unknown name.
    """
    gateway = Gateway(settings, router, source)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with gateway.running():
            yield

    app = _App(
        title="Switchcraft",
        version=__version__,
        description=schemas.DESCRIPTION,
        openapi_tags=schemas.TAGS,
        lifespan=lifespan,
        # FastAPI's documentation pages load scripts from a third party. `/docs` leads to our page.
        docs_url=None,
        redoc_url=None,
        # A redirect would be built from the Host header, which the client controls.
        redirect_slashes=False,
        exception_handlers=dict.fromkeys((*errors.HANDLED, Exception), errors.respond),
    )
    app.state.gateway = gateway
    routers = (inference.described_routes(), counting.routes_of_apis())
    below_version = (*(api.path for api in APIS), "/completions", "/embeddings", "/models")
    app.entry = Front(app.entry, gateway, below_version)
    modules = (passing, resources, request_lists, accounts, usage, pages, traffic, requests)
    included = (*routers, *(module.routes for module in modules), passing.catch_all)
    served: dict[str, set[str]] = {}
    for each in included:
        # `include_router` would build each route a second time when the first request arrives.
        app.router.routes.extend(each.routes)
        for route in each.routes:
            if isinstance(route, APIRoute) and route.include_in_schema:
                served.setdefault(route.path_format, set()).update(route.methods or ())
    app.state.served = served
    app.mount(f"{UI_PATH}/static", pages.static)
    return app
