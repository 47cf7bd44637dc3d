"""Errors of upstreams, read from one API's format and written in another's."""

from __future__ import annotations

from dataclasses import dataclass

from router_service.apis.answers import fix_surrogates
from router_service.apis.conversation import Json
from router_service.apis.parts import Dialect
from router_service.core.errors import SwitchcraftError

_ANTHROPIC_TYPES = {
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
"""Anthropic's type of an error by its status (API reference, "Errors"). 503 is OpenAI's status for
an overloaded engine."""

_STATUSES = {
    "invalid_request_error": 400,
    "invalid_prompt": 400,
    "context_length_exceeded": 400,
    "content_filter": 400,
    "authentication_error": 401,
    "invalid_api_key": 401,
    "billing_error": 402,
    "insufficient_quota": 429,
    "permission_error": 403,
    "not_found_error": 404,
    "model_not_found": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "api_error": 500,
    "server_error": 500,
    "internal_error": 500,
    "overloaded_error": 529,
    "timeout_error": 504,
    "upstream_timeout": 504,
    "deadline_exceeded": 504,
}
"""Statuses of errors that are reported within an answer, by their code or type."""

TOO_LONG = "context_length_exceeded"
_ANTHROPIC_TOO_LONG = "prompt is too long"
"""Start of Anthropic's message for a prompt that exceeds the context window. Claude Code compacts
the conversation if it reads this."""


class ForeignAnswerError(SwitchcraftError):
    """An answer or event that is not one of its API, or that another API cannot express."""

    def __init__(self, source: Dialect, problem: str) -> None:
        """Create the message; `problem` is a verb phrase after "An answer of the X API"."""
        super().__init__(f"An answer of the {source.value} API {problem}.")
        self.source = source
        self.problem = problem


@dataclass(frozen=True, slots=True)
class AnswerError:
    """What an error says."""

    status: int
    """The HTTP status, or the status that would fit if the error came within an answer."""
    message: str
    kind: str | None = None
    """The provider's type of the error, such as `rate_limit_error`."""
    code: str | None = None
    """A machine-readable cause, such as `context_length_exceeded`."""
    param: str | None = None
    """The field of the request that caused the error."""


def read_error(value: Json, source: Dialect, status: int) -> AnswerError:
    """Return what an error body or event says, in the format of `source` or in a similar one.

    A status below 400 is replaced by the one that fits the error.
    """
    if isinstance(value, list) and len(value) == 1:  # Google's compatible API
        value = value[0]
    body = value if isinstance(value, dict) else {}
    response = body.get("response")
    inner = response if isinstance(response, dict) else body
    error = inner.get("error", inner.get("detail"))
    fields = error if isinstance(error, dict) else inner
    texts = {name: _text(fields.get(name)) for name in ("message", "type", "code", "param")}
    if isinstance(error, list):  # FastAPI's validation errors
        error = "; ".join(_text(each.get("msg")) or "" for each in error if isinstance(each, dict))
    message = texts["message"] or _text(error)
    kind = None if fields is body and texts["type"] == "error" else texts["type"]
    code = texts["code"]
    if status < 400:
        status = _STATUSES.get(code or "", _STATUSES.get(kind or "", 0))
        number = int(code) if code and code.isdecimal() and len(code) == 3 else 0  # OpenRouter
        status = status or (number if 400 <= number < 600 else 500)
    if source is Dialect.MESSAGES and message and message.startswith(_ANTHROPIC_TOO_LONG):
        code = code or TOO_LONG
    message = message or f"The upstream answered with status {status} and without a message."
    return AnswerError(status, message, kind, code, texts["param"])


def write_error(
    error: AnswerError, target: Dialect, *, request_id: str | None = None
) -> dict[str, Json]:
    """Return the body of an error in the format of `target`, which names types by the status."""
    if target is not Dialect.MESSAGES:
        is_clients = error.status < 500
        kind = "invalid_request_error" if is_clients else "server_error"
        kind = "rate_limit_error" if error.status == 429 else kind
        code = error.code or (error.kind if error.kind != kind else None)
        fields = {"message": error.message, "type": kind, "param": error.param, "code": code}
        return {"error": fields}
    fallback = "invalid_request_error" if error.status < 500 else "api_error"
    kind = _ANTHROPIC_TYPES.get(error.status, fallback)
    message = error.message
    if error.code == TOO_LONG and not message.startswith(_ANTHROPIC_TOO_LONG):
        message = f"{_ANTHROPIC_TOO_LONG}: {message}"
    body: dict[str, Json] = {"type": "error", "error": {"type": kind, "message": message}}
    return body if request_id is None else {**body, "request_id": request_id}


def _text(value: Json) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value) if abs(value) < 10**9 else None
    return fix_surrogates(value) if isinstance(value, str) and value else None
