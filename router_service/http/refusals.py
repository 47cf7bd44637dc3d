"""Requests that end before an upstream is asked."""

from __future__ import annotations

from starlette.requests import ClientDisconnect
from starlette.responses import Response

from router_service.core.errors import OverloadedError, SwitchcraftError
from router_service.http.errors import CLIENT_LEFT, error_response, status_of
from router_service.requests.recorder import Call, Recorder


def refusal(recorder: Recorder, call: Call, exc: SwitchcraftError | ClientDisconnect) -> Response:
    """Record a request that is refused, or whose client has left, and return its answer."""
    if isinstance(exc, ClientDisconnect):
        recorder.left(call, CLIENT_LEFT)
        return Response(status_code=CLIENT_LEFT)
    if isinstance(exc, OverloadedError):
        recorder.shed(exc.reason)
    recorder.refused(call, status_of(exc))
    return error_response(exc)
