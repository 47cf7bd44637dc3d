"""Errors as the providers' APIs write them, as whole answers and within streams."""

from __future__ import annotations

from typing import Any

from tests import apis
from tests.apis import UpstreamApi
from tests.providers.answers import event

ERROR_MESSAGE = "The scripted provider fails."

ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    429: "rate_limit_error",
    500: "api_error",
    529: "overloaded_error",
}


def error_body(dialect: UpstreamApi, status: int, message: str) -> dict[str, Any]:
    """Return the body of an error."""
    if dialect is apis.MESSAGES:
        error = {"type": ANTHROPIC_TYPES[status], "message": message}
        return {"type": "error", "error": error, "request_id": "req_upstream"}
    if dialect is apis.CONVERSE:
        return {"message": message}
    kind = "invalid_request_error" if status == 400 else "server_error"
    code = None
    if status == 429:
        kind, code = "requests", "rate_limit_exceeded"
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def error_event(dialect: UpstreamApi, number: int) -> bytes:
    """Return the event that reports an error in a stream."""
    if dialect is apis.MESSAGES:
        return event(error_body(dialect, 529, ERROR_MESSAGE), "error")
    if dialect is apis.CHAT:
        return event(error_body(dialect, 500, ERROR_MESSAGE))
    if dialect is apis.CONVERSE:
        return event({"serviceUnavailableException": {"message": ERROR_MESSAGE}})
    error = {"code": "server_error", "message": ERROR_MESSAGE, "param": None}
    return event({"type": "error", "sequence_number": number, **error}, "error")
