"""Knows every request from its arrival to its end: its ids, its trace, and its one log line."""

from __future__ import annotations

import secrets
import time
from typing import Any

from opentelemetry.trace import Tracer
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from router_service.http.auth import CALLER
from router_service.http.errors import CLIENT_LEFT, error_response
from router_service.requests.recorder import Call, Recorder
from router_service.tracing import UNTRACED, Trace

CALL = "call"
"""Where a request's `Call` stands in `scope["state"]`."""

MAX_REQUEST_ID = 200
"""Longest id of a client's that is logged and given back, in characters."""

TRACED_PREFIX = "/v1/"
"""What spans are made of; probes and scrapes would only hide it."""

_REQUEST_ID = b"x-request-id"


class Accounting:
    """ASGI middleware around all others, so that what they refuse is accounted for as well."""

    def __init__(self, app: ASGIApp, recorder: Recorder, tracer: Tracer | None) -> None:
        """Account for an app's requests."""
        self._app = app
        self._recorder = recorder
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and account for it where nobody within did."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        call = self._begin(scope)
        answer = _Answer(send, call.request_id.encode("latin-1"))
        try:
            await self._app(scope, receive, answer.send)
        except Exception as exc:
            # Answered here, for the framework's own answer to a fault is made outside of all this.
            if answer.status is None:
                await error_response(exc)(scope, receive, answer.send)
            raise
        finally:
            self._end(scope, call, answer.status or CLIENT_LEFT)

    def _begin(self, scope: Scope) -> Call:
        headers, path = Headers(scope=scope), scope["path"]
        decision_id = f"dec_{secrets.token_hex(12)}"
        theirs = headers.get("x-request-id", "")[:MAX_REQUEST_ID]
        trace = UNTRACED
        if self._tracer is not None and path.startswith(TRACED_PREFIX):
            trace = Trace(self._tracer, path, headers)
        call = Call(decision_id, theirs or decision_id, time.perf_counter(), trace=trace)
        scope.setdefault("state", {})[CALL] = call
        return call

    def _end(self, scope: Scope, call: Call, status: int) -> None:
        call.key = scope["state"].get(CALLER)
        self._recorder.ended(call, scope["method"], scope["path"], status)
        call.trace.end(scope["method"], getattr(scope.get("route"), "path", None), status)


class _Answer:
    """Sends an answer, notes its status, and gives it the request's id where it has none."""

    def __init__(self, send: Send, request_id: bytes) -> None:
        self._send = send
        self._request_id = request_id
        self.status: int | None = None

    async def send(self, message: Message) -> None:
        """Send a part of it."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = self._identified(message)
        await self._send(message)

    def _identified(self, message: Message) -> dict[str, Any]:
        headers = [*message.get("headers", ())]
        if all(name.lower() != _REQUEST_ID for name, _ in headers):
            headers.append((_REQUEST_ID, self._request_id))
        return {**message, "headers": headers}
