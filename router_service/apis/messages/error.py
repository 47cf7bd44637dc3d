"""Errors in Anthropic's format."""

from __future__ import annotations

from router_service.apis.answer_errors import TOO_LONG, AnswerError
from router_service.apis.conversation import Json

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""Type of an error by its status (API reference, "Errors"). 503 is OpenAI's status for an
overloaded engine."""

TOO_LONG_MESSAGE = "prompt is too long"
"""Start of Anthropic's message for a prompt that exceeds the context window. Claude Code compacts
the conversation if it reads this."""


def write_error(error: AnswerError, *, request_id: str | None = None) -> dict[str, Json]:
    """Return the body of an error, whose type the status names."""
    fallback = "invalid_request_error" if error.status < 500 else "api_error"
    kind = _TYPES.get(error.status, fallback)
    message = error.message
    if error.code == TOO_LONG and not message.startswith(TOO_LONG_MESSAGE):
        message = f"{TOO_LONG_MESSAGE}: {message}"
    body: dict[str, Json] = {"type": "error", "error": {"type": kind, "message": message}}
    return body if request_id is None else {**body, "request_id": request_id}
