"""The way of every request into the gateway: ids, trace, key, slot, route, and settlement."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Iterable, Sequence

from opentelemetry.trace import Tracer
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from router_service.apis.api import HEADER_PREFIXES
from router_service.core.errors import (
    InvalidRequestError,
    OverloadedError,
)
from router_service.core.record import CLIENT_LEFT, RecordKind
from router_service.http.auth import (
    ADMIN_HEADERS,
    ADMIN_PREFIX,
    PAGE_HEADERS,
    authenticate,
    is_ui_path,
)
from router_service.http.error_responses import CALL, code_of, error_response, refuse, status_of
from router_service.http.inference import ENDPOINTS, answer
from router_service.http.transfer import RawHeaders
from router_service.requests.call import Call
from router_service.runtime.gateway import Gateway
from router_service.telemetry.metrics import NO_MODEL, NO_RELEASE, status_label
from router_service.tracing import UNTRACED, Trace

MAX_REQUEST_ID = 200
"""Maximum length of a client's request id in logs and responses, in characters."""

TRACED_PREFIX = "/v1/"
"""Prefix of traced paths. Spans of health probes and metric scrapes would only be noise."""

SHED_PREFIXES = ("/v1/", "/ui/api/ask/", "/ui/api/traffic/", "/ui/openapi.json")
"""Prefixes of paths that every key may use, so that they need a slot. All other paths, such as
health probes, metrics and administration, must be answered under any load."""

_log = logging.getLogger("switchcraft.access")

_REQUEST_ID = b"x-request-id"
_CLOSE = (b"connection", b"close")
_PAGE_HEADERS, _ADMIN_HEADERS = (
    [(name.encode(), value.encode()) for name, value in headers.items()]
    for headers in (PAGE_HEADERS, ADMIN_HEADERS)
)


class Front:
    """Outermost ASGI app: every request passes it once on its way in and once on its way out.

    It answers the endpoints of models itself, and calls FastAPI for all other routes. FastAPI tries
    every router in turn, and resolves dependencies even if a route has none. That takes 0.07 ms of
    processor time with one router, and this app has several. FastAPI knows these endpoints too, for
    the OpenAPI schema and for the answers to other methods.
    """

    def __init__(self, app: ASGIApp, gateway: Gateway, below_version: Iterable[str]) -> None:
        """Serve other paths than those of models by `app`.

        The paths `below_version` are served without `/v1` too, because clients of LiteLLM's proxy
        often leave it out.
        """
        self._app = app
        self._gateway = gateway
        self._tracer: Tracer | None = gateway.tracing.tracer if gateway.tracing else None
        self._below_version = frozenset(below_version)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; nothing that it does happens outside, so no ending is missed."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["path"] in self._below_version:
            path = f"/v1{scope['path']}"
            scope.update(path=path, raw_path=path.encode())
        call = self._identify(scope)
        status: int | None = None

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = self._headers(message.get("headers", ()), call)
                message = {**message, "headers": headers}
            await send(message)

        try:
            await self._serve(scope, receive, send_with_headers, call)
        except Exception as exc:
            # Answered here, because the framework's answer would lack our headers.
            if status is None:
                await error_response(exc, scope)(scope, receive, send_with_headers)
            raise
        except asyncio.CancelledError:
            error = self._gateway.drain.cut_off_error()
            if error is None:
                raise
            if status is None and call.is_logged:  # a planned request, with a decision record
                self._gateway.metrics.refused_requests.labels("overload", error.reason).inc()
                await error_response(error, scope)(scope, receive, send_with_headers)
            elif status is None:
                await refuse(self._gateway, scope, error)(scope, receive, send_with_headers)
        finally:
            final = status or CLIENT_LEFT
            if call.admission is not None:
                try:
                    self._gateway.access.settle(call.admission, final, call.record)
                except Exception:  # noqa: BLE001 - the request has ended, with its answer
                    _log.exception("settlement failed: id=%s status=%d", call.decision_id, final)
            if not call.is_logged:
                self._gateway.recorder.ended(call, final, RecordKind.OWN, method=scope["method"])
            route = call.path if call.path in ENDPOINTS else None
            route = getattr(scope.get("route"), "path", route)
            call.trace.end(scope["method"], route, final)

    def _identify(self, scope: Scope) -> Call:
        """Give a request its ids and its trace."""
        path = scope["path"]
        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in reversed(scope["headers"])}
        decision_id = f"dec_{os.urandom(12).hex()}"
        request_id = headers.get("x-request-id", "")[:MAX_REQUEST_ID] or decision_id
        trace = UNTRACED
        if self._tracer is not None and path.startswith(TRACED_PREFIX):
            trace = Trace(self._tracer, path, headers)
        call = Call(
            decision_id, request_id, time.perf_counter(), scope["method"], path, headers, trace
        )
        scope.setdefault("state", {})[CALL] = call
        return call

    async def _serve(self, scope: Scope, receive: Receive, send: Send, call: Call) -> None:
        """Answer a request whose key may use its path, and for which a slot is free.

        The rules of keys apply to `scope["path"]`, which also selects the route. A URL that is
        rebuilt from the Host header may have another path (CVE-2026-48710).
        """
        gateway, path = self._gateway, call.path
        try:
            call.key = authenticate(gateway.engine.keys, path, call.headers)
        except InvalidRequestError as exc:
            gateway.metrics.refused_requests.labels("caller", code_of(exc)).inc()
            await error_response(exc, scope)(scope, receive, send)
            return
        if not path.startswith(SHED_PREFIXES):
            await self._app(scope, receive, send)
            return
        try:
            gateway.drain.check()
            # Taken after the key is known, so that a request without a valid key takes no slot.
            with gateway.slots.take(call.key.name) as slot:
                call.hold_memory = slot.hold
                endpoint = ENDPOINTS.get(path)
                if endpoint is None or scope["method"] != "POST":
                    await self._app(scope, receive, send)
                else:
                    await answer(call, gateway, endpoint, scope, receive, send)
        except OverloadedError as exc:
            call.refusal = exc.reason
            status = status_label(status_of(exc))
            gateway.metrics.refused_requests.labels("overload", exc.reason).inc()
            gateway.metrics.requests.labels(NO_MODEL, "none", status, NO_RELEASE).inc()
            await error_response(exc, scope)(scope, receive, send)

    def _headers(self, headers: Iterable[tuple[bytes, bytes]], call: Call) -> RawHeaders:
        """Return an answer's headers with the request's id and what its path and key require."""
        headers, path = [*headers], call.path
        required: RawHeaders = [(_REQUEST_ID, call.request_id.encode("latin-1"))]
        if path.startswith(ADMIN_PREFIX):
            required += _ADMIN_HEADERS
        elif not path.startswith(TRACED_PREFIX) and is_ui_path(path):
            required += _PAGE_HEADERS
        names = [name for name, _ in headers]  # in lower case (ASGI)
        headers += [header for header in required if header[0] not in names]
        if self._gateway.drain.has_begun and path.startswith(SHED_PREFIXES):
            # So that the client connects elsewhere.
            headers = [*(each for each in headers if each[0].lower() != _CLOSE[0]), _CLOSE]
        if call.admission is not None and call.admission.headers:
            headers = _with_granted(headers, call.admission.headers)
        return headers


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
