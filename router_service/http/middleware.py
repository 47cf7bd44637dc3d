"""ASGI middleware around the routes: accounting, admission, and a shortcut."""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import cast

from fastapi.routing import APIRoute
from opentelemetry.trace import Tracer
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from router_service.core.errors import OverloadedError
from router_service.http.errors import error_response, status_of
from router_service.lifecycle.overload import Drain, Slots
from router_service.requests.exchange import CLIENT_LEFT, Recorder, RequestInfo
from router_service.telemetry.metrics import NO_MODEL, Metrics, status_label
from router_service.tracing import UNTRACED, Trace

INFO = "info"
"""Key in `scope["state"]` of the request's `RequestInfo`."""

MAX_REQUEST_ID = 200
"""Longest client's request id that is logged and returned, in characters."""

TRACED_PREFIX = "/v1/"
"""Paths with spans; spans of probes and scrapes would only hide the others."""

SHED_PREFIXES = ("/v1/", "/ui/api/ask/")
"""Paths that need a slot; probes, metrics and administration must answer under any load."""

Handler = Callable[[Request], Awaitable[Response]]

_REQUEST_ID = b"x-request-id"
_CLOSE = (b"connection", b"close")


class Accounting:
    """Outermost middleware: gives each request its ids and its trace, and logs each one once."""

    def __init__(self, app: ASGIApp, recorder: Recorder, tracer: Tracer | None) -> None:
        """Account for an app's requests."""
        self._app = app
        self._recorder = recorder
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, and record it if nothing further inside has recorded it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, path = Headers(scope=scope), scope["path"]
        decision_id = f"dec_{secrets.token_hex(12)}"
        request_id = headers.get("x-request-id", "")[:MAX_REQUEST_ID] or decision_id
        trace = UNTRACED
        if self._tracer is not None and path.startswith(TRACED_PREFIX):
            trace = Trace(self._tracer, path, headers)
        info = RequestInfo(decision_id, request_id, time.perf_counter(), trace=trace)
        scope.setdefault("state", {})[INFO] = info
        status: int | None = None

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message.get("headers", ())]
                if all(name.lower() != _REQUEST_ID for name, _ in headers):
                    headers.append((_REQUEST_ID, request_id.encode("latin-1")))
                message = {**message, "headers": headers}
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception as exc:
            # Answered here, because the framework's answer would not pass through this middleware.
            if status is None:
                await error_response(exc)(scope, receive, send_with_id)
            raise
        finally:
            final = status or CLIENT_LEFT
            self._recorder.ended(info, scope["method"], path, final)
            trace.end(scope["method"], getattr(scope.get("route"), "path", None), final)


class Admission:
    """Gives each request a slot until its answer has been sent; refuses new ones at shutdown."""

    def __init__(self, app: ASGIApp, slots: Slots, drain: Drain, metrics: Metrics) -> None:
        """Guard an app."""
        self._app = app
        self._slots = slots
        self._drain = drain
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, or refuse it."""
        if scope["type"] != "http" or not scope["path"].startswith(SHED_PREFIXES):
            await self._app(scope, receive, send)
            return

        async def send_and_close(message: Message) -> None:
            """Close the connection with its answer, so that the client connects elsewhere."""
            if message["type"] == "http.response.start":
                others = (header for header in message["headers"] if header[0] != _CLOSE[0])
                message = {**message, "headers": [*others, _CLOSE]}
            await send(message)

        last = send_and_close if self._drain.has_begun else send
        try:
            self._drain.check()
            info: RequestInfo = scope["state"][INFO]
            with self._slots.slot(info.key) as slot:
                info.hold_memory = slot.hold
                await self._app(scope, receive, last)
        except OverloadedError as exc:
            status = status_label(status_of(exc))
            self._metrics.shed_requests.labels(exc.reason).inc()
            self._metrics.requests.labels(NO_MODEL, "none", status).inc()
            await error_response(exc)(scope, receive, last)


class Shortcut:
    """Sends POST requests for plain paths directly to the function of their route.

    FastAPI tries every router in turn, and resolves dependencies even without any: 0.07 ms of CPU
    with one router, and this app has several. The routes stay registered, for the OpenAPI
    schema and for the answers to other methods.
    """

    def __init__(self, app: ASGIApp, routes: Iterable[BaseRoute]) -> None:
        """Wrap an app; the functions of these routes must take only the request."""
        self._app = app
        self._routes: Mapping[str, APIRoute] = {
            route.path: route
            for route in routes
            if isinstance(route, APIRoute) and route.methods == {"POST"} and "{" not in route.path
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or forward the request to the framework."""
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        route = self._routes.get(scope["path"]) if is_post else None
        if route is None:
            await self._app(scope, receive, send)
            return
        scope["route"] = route
        handler = cast("Handler", route.endpoint)
        response = await handler(Request(scope, receive))
        await response(scope, receive, send)
