"""Errors of upstreams, and the format of them that OpenAI's APIs share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from router_service.apis.conversation import Json, as_dict
from router_service.apis.encoding import fix_surrogates
from router_service.core.errors import SwitchcraftError

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
"""OpenAI's code for a prompt that exceeds the context window."""


class ForeignAnswerError(SwitchcraftError):
    """An answer or event that is not one of its API, or that another API cannot express."""

    def __init__(self, source: str, problem: str) -> None:
        """Create the message; `source` is the API's name, and `problem` a phrase with a verb."""
        super().__init__(f"An answer of the {source} API {problem}.")
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


def unwrapped(value: Json) -> Json:
    """Return a decoded error without the list that Google's compatible API puts around it."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def read_error(value: Json, status: int) -> AnswerError:
    """Return what an error body or event says, in any provider's format.

    A status below 400 is replaced by the one that fits the error.
    """
    body = as_dict(unwrapped(value))
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
    message = message or f"The upstream answered with status {status} and without a message."
    return AnswerError(status, message, kind, code, texts["param"])


def error_fields(value: Json) -> Json:
    """Return the part of an error body or event that has its message and its code."""
    inner = value.get("response", value) if isinstance(value, dict) else None
    return inner.get("error", inner) if isinstance(inner, dict) else None


def is_error(value: Mapping[str, Json]) -> bool:
    """Return whether a decoded body or event is an error, whatever its status was.

    Chat Completions report errors in a top-level `error`. Responses and Messages report them by
    events of the type `error`, and Responses also by a response that failed. Compatible servers mix
    these forms.
    """
    if value.get("error") or value.get("status") == "failed":
        return True
    return value.get("type") in ("error", "response.failed")


def write_openai_error(error: AnswerError) -> dict[str, Json]:
    """Return the body of an error in OpenAI's format, in which the status names the type."""
    is_clients = error.status < 500
    kind = "invalid_request_error" if is_clients else "server_error"
    kind = "rate_limit_error" if error.status == 429 else kind
    code = error.code or (error.kind if error.kind != kind else None)
    fields = {"message": error.message, "type": kind, "param": error.param, "code": code}
    return {"error": fields}


def is_openai_error(value: Json) -> bool:
    """Return whether a decoded body is an error in OpenAI's format."""
    has_error = isinstance(value, dict) and isinstance(value.get("error"), dict)
    return has_error and value.get("type") != "error"


def _text(value: Json) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value) if abs(value) < 10**9 else None
    return fix_surrogates(value) if isinstance(value, str) and value else None
