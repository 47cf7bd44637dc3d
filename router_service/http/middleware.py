"""ASGI middleware: logging and settlement, control of concurrency, and a fast path to routes."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import cast

from fastapi.routing import APIRoute
from opentelemetry.trace import Tracer
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from router_service.access.hooks import AccessHooks, Grant, IncomingRequest, Outcome
from router_service.apis.rate_limits import HEADER_PREFIXES
from router_service.core.errors import OverloadedError
from router_service.http.error_responses import INFO, error_response, refuse, status_of
from router_service.http.transfer import RawHeaders
from router_service.requests.exchange import CLIENT_LEFT, RequestInfo
from router_service.requests.limits import Drain, Slots
from router_service.requests.recording import Recorder
from router_service.telemetry.metrics import NO_MODEL, Metrics, status_label
from router_service.tracing import UNTRACED, Trace

MAX_REQUEST_ID = 200
"""Maximum length of a client's request id in logs and responses, in characters."""

TRACED_PREFIX = "/v1/"
"""Prefix of traced paths. Spans of health probes and metric scrapes would only be noise."""

SHED_PREFIXES = ("/v1/", "/ui/api/ask/", "/ui/api/traffic/", "/ui/openapi.json")
"""Prefixes of paths that every key may use, so that they need a slot. All other paths, such as
health probes, metrics and administration, must be answered under any load."""

Handler = Callable[[Request], Awaitable[Response]]

_log = logging.getLogger("switchcraft.access")

_REQUEST_ID = b"x-request-id"
_CLOSE = (b"connection", b"close")


class Accounting:
    """Outermost middleware: gives each request its ids and its trace, logs it and settles it once.

    Only requests that were admitted are settled. Nothing that a request does happens outside of
    this middleware, so no ending of a request is missed.
    """

    def __init__(
        self,
        app: ASGIApp,
        recorder: Recorder,
        drain: Drain,
        hooks: AccessHooks,
        tracer: Tracer | None,
    ) -> None:
        """Wrap an app; without a tracer, no request is traced."""
        self._app = app
        self._recorder = recorder
        self._drain = drain
        self._hooks = hooks
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, and record it if no inner layer has recorded it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in reversed(scope["headers"])}
        decision_id = f"dec_{secrets.token_hex(12)}"
        request_id = headers.get("x-request-id", "")[:MAX_REQUEST_ID] or decision_id
        trace = UNTRACED
        if self._tracer is not None and path.startswith(TRACED_PREFIX):
            trace = Trace(self._tracer, path, headers)
        info = RequestInfo(
            decision_id,
            request_id,
            time.perf_counter(),
            path=path,
            trace=trace,
            headers=headers,
        )
        scope.setdefault("state", {})[INFO] = info
        status: int | None = None

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message.get("headers", ())]
                if _REQUEST_ID not in [name.lower() for name, _ in headers]:
                    headers.append((_REQUEST_ID, request_id.encode("latin-1")))
                if info.admitted is not None and info.admitted[1].headers:
                    headers = _with_granted(headers, info.admitted[1].headers)
                message = {**message, "headers": headers}
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception as exc:
            # Answered here, because the framework's answer would not pass through this middleware.
            if status is None:
                await error_response(exc, scope)(scope, receive, send_with_id)
            raise
        except asyncio.CancelledError:
            error = self._drain.cut_off_error()
            if error is None:
                raise
            if status is None and info.is_logged:  # a planned request, with a decision record
                self._recorder.shed(error.reason)
                await error_response(error, scope)(scope, receive, send_with_id)
            elif status is None:
                await refuse(self._recorder, scope, error)(scope, receive, send_with_id)
        finally:
            final = status or CLIENT_LEFT
            if info.admitted is not None:
                self._settle(*info.admitted, Outcome(final, info.record))
            self._recorder.ended(info, scope["method"], path, final)
            trace.end(scope["method"], getattr(scope.get("route"), "path", None), final)

    def _settle(self, request: IncomingRequest, grant: Grant, outcome: Outcome) -> None:
        try:
            self._hooks.settle(request, grant, outcome)
        except Exception:  # noqa: BLE001 - the request has ended, and its client has the answer
            _log.exception("settlement failed: id=%s status=%d", request.id, outcome.status)


def _with_granted(headers: RawHeaders, granted: Sequence[tuple[bytes, bytes]]) -> RawHeaders:
    """Return an answer's headers with those that its admission has granted.

    The upstream's headers about rate limits are left out if ours are granted: the upstream's limits
    are those of the gateway's account.
    """
    replaced = {name for name, _ in granted}
    has_rates = any(name.startswith(HEADER_PREFIXES) for name in replaced)
    kept = [
        (name, value)
        for name, value in headers
        if name not in replaced and not (has_rates and name.startswith(HEADER_PREFIXES))
    ]
    return [*kept, *granted]


class Admission:
    """Gives each request a slot until its answer is sent, or refuses it at overload or shutdown."""

    def __init__(self, app: ASGIApp, slots: Slots, drain: Drain, metrics: Metrics) -> None:
        """Wrap an app."""
        self._app = app
        self._slots = slots
        self._drain = drain
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, or answer it with an error if it is refused."""
        if scope["type"] != "http" or not scope["path"].startswith(SHED_PREFIXES):
            await self._app(scope, receive, send)
            return

        async def send_and_close(message: Message) -> None:
            """Send a message with `connection: close`, so that the client connects elsewhere."""
            if message["type"] == "http.response.start":
                others = (header for header in message["headers"] if header[0] != _CLOSE[0])
                message = {**message, "headers": [*others, _CLOSE]}
            await send(message)

        last = send_and_close if self._drain.has_begun else send
        info: RequestInfo = scope["state"][INFO]
        try:
            self._drain.check()
            with self._slots.slot(info.key) as slot:
                info.hold_memory = slot.hold
                await self._app(scope, receive, last)
        except OverloadedError as exc:
            info.refusal = exc.reason
            status = status_label(status_of(exc))
            self._metrics.shed_requests.labels(exc.reason).inc()
            self._metrics.requests.labels(NO_MODEL, "none", status).inc()
            await error_response(exc, scope)(scope, receive, last)


class BelowVersion:
    """Serves paths without `/v1`, too, because clients of LiteLLM's proxy often leave it out."""

    def __init__(self, app: ASGIApp, paths: Iterable[str]) -> None:
        """Wrap an app that serves these paths below `/v1`."""
        self._app = app
        self._paths = frozenset(paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, to the path below `/v1` if it has one of the paths."""
        if scope["type"] == "http" and scope["path"] in self._paths:
            path = f"/v1{scope['path']}"
            scope.update(path=path, raw_path=path.encode())
        await self._app(scope, receive, send)


class Shortcut:
    """Sends POST requests for plain paths directly to the function of their route.

    FastAPI tries every router in turn, and resolves dependencies even if a route has none. That
    takes 0.07 ms of CPU time with one router, and this app has several. The routes also stay
    registered with FastAPI, for the OpenAPI schema and for the answers to other methods.
    """

    def __init__(self, app: ASGIApp, routes: Iterable[BaseRoute]) -> None:
        """Wrap an app; the function of each route must take the request as its only argument."""
        self._app = app
        self._routes: Mapping[str, APIRoute] = {
            route.path: route
            for route in routes
            if isinstance(route, APIRoute) and route.methods == {"POST"} and "{" not in route.path
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the route's function, or forward the request to FastAPI if no route matches."""
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        route = self._routes.get(scope["path"]) if is_post else None
        if route is None:
            await self._app(scope, receive, send)
            return
        scope["route"] = route
        handler = cast("Handler", route.endpoint)
        response = await handler(Request(scope, receive))
        await response(scope, receive, send)
