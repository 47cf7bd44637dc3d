"""Lets requests in while there are slots, and none in the end."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from router_service.api.auth import CALLER
from router_service.api.errors import error_response, status_of
from router_service.core.errors import OverloadedError
from router_service.serving.draining import Drain
from router_service.serving.overload import Slots
from router_service.telemetry.metrics import NO_MODEL, Metrics, status_label

SHED_PREFIXES = ("/v1/", "/ui/api/ask/")
"""What is counted and shed; probes, metrics and administration must answer under any load."""

_CLOSE = (b"connection", b"close")


class Admission:
    """ASGI middleware that lets requests in while there are slots, and none in the end."""

    def __init__(self, app: ASGIApp, slots: Slots, drain: Drain, metrics: Metrics) -> None:
        """Guard an app."""
        self._app = app
        self._slots = slots
        self._drain = drain
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http" or not scope["path"].startswith(SHED_PREFIXES):
            await self._app(scope, receive, send)
            return
        last = _closing(send) if self._drain.has_begun else send
        try:
            self._drain.check()
            with self._slots.slot(scope.get("state", {}).get(CALLER)):
                await self._app(scope, receive, last)
        except OverloadedError as exc:
            status = status_label(status_of(exc))
            self._metrics.shed_requests.labels(exc.reason).inc()
            self._metrics.requests.labels(NO_MODEL, "none", status).inc()
            await error_response(exc)(scope, receive, last)


def _closing(send: Send) -> Send:
    """Return a `send` whose answers end their connection, so that clients go elsewhere."""

    async def send_last(message: Message) -> None:
        if message["type"] == "http.response.start":
            others = (header for header in message["headers"] if header[0] != _CLOSE[0])
            message = {**message, "headers": [*others, _CLOSE]}
        await send(message)

    return send_last
