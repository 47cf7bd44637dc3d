"""Admits requests while there are slots, and refuses new ones during a shutdown."""

from __future__ import annotations

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from router_service.core.errors import OverloadedError
from router_service.http.auth import CALLER
from router_service.http.errors import error_response, status_of
from router_service.lifecycle.gateway import Drain
from router_service.lifecycle.overload import Slot, Slots
from router_service.telemetry.metrics import NO_MODEL, Metrics, status_label

SHED_PREFIXES = ("/v1/", "/ui/api/ask/")
"""Paths that need a slot; probes, metrics and administration must answer under any load."""

SLOT = "slot"
"""Where a request's `Slot` stands in `scope["state"]`."""

_CLOSE = (b"connection", b"close")


class Admission:
    """ASGI middleware that gives each request a slot until its answer has been sent."""

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
            state = scope.setdefault("state", {})
            with self._slots.slot(state.get(CALLER)) as slot:
                state[SLOT] = slot
                await self._app(scope, receive, last)
        except OverloadedError as exc:
            status = status_label(status_of(exc))
            self._metrics.shed_requests.labels(exc.reason).inc()
            self._metrics.requests.labels(NO_MODEL, "none", status).inc()
            await error_response(exc)(scope, receive, last)


def slot_of(request: Request) -> Slot | None:
    """Return the slot of a request; None if its path needs none."""
    slot: Slot | None = request.scope.get("state", {}).get(SLOT)
    return slot


def _closing(send: Send) -> Send:
    """Return a `send` whose answers end their connection, so that clients go elsewhere."""

    async def send_last(message: Message) -> None:
        if message["type"] == "http.response.start":
            others = (header for header in message["headers"] if header[0] != _CLOSE[0])
            message = {**message, "headers": [*others, _CLOSE]}
        await send(message)

    return send_last
