"""Errors of Amazon Bedrock.

A refused request has the body `{"message": "..."}`, and the error's type is only in a header. A
stream reports an error by an event with the exception's name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from router_service.apis import answer_errors
from router_service.apis.answer_errors import TOO_LONG, AnswerError
from router_service.apis.conversation import Json

_STATUSES = {
    "validationException": 400,
    "accessDeniedException": 403,
    "resourceNotFoundException": 404,
    "modelTimeoutException": 408,
    "modelErrorException": 424,
    "modelStreamErrorException": 424,
    "throttlingException": 429,
    "modelNotReadyException": 429,
    "internalServerException": 500,
    "serviceUnavailableException": 503,
}
"""HTTP status of each exception (Amazon Bedrock API reference: "ConverseStream", errors)."""

_FIELDS = frozenset(
    ("message", "Message", "originalMessage", "originalStatusCode", "resourceName", "__type")
)
"""Fields of an exception."""

_TOO_LONG = re.compile("(input|prompt) is too long|too many input tokens|maximum context length")


def _exception(value: Json) -> tuple[str, Mapping[str, Json]] | None:
    """Return the name and the fields of an exception in a stream, or None if there is none."""
    for name, fields in value.items() if isinstance(value, dict) and len(value) == 1 else ():
        if name in _STATUSES and isinstance(fields, dict):
            return name, fields
    return None


def is_error(value: Mapping[str, Json]) -> bool:
    """Return whether a body or an event is an error, even if the status was a success."""
    return _exception(value) is not None or is_error_body(value) or answer_errors.is_error(value)


def is_error_body(value: Json) -> bool:
    """Return whether a decoded body is an error of AWS, which has only a message."""
    if not isinstance(value, dict) or not value.keys() <= _FIELDS:
        return _exception(value) is not None
    return isinstance(value.get("message", value.get("Message")), str)


def error_fields(value: Json) -> Json:
    """Return the message of an error, with its status as the code."""
    exception = _exception(value)
    if exception is None:
        return answer_errors.error_fields(value)
    name, fields = exception
    return {"message": fields.get("message"), "code": _STATUSES[name]}


def read_error(value: Json, status: int) -> AnswerError:
    """Return what an error says. A status below 400 is replaced by the exception's."""
    name, fields = _exception(value) or (None, value)
    if name is not None and status < 400:
        status = _STATUSES[name]
    if isinstance(fields, dict) and "message" not in fields and "Message" in fields:
        fields = {**fields, "message": fields["Message"]}
    error = answer_errors.read_error(fields, status)
    is_too_long = error.status in {400, 413} and _TOO_LONG.search(error.message.lower())
    code = TOO_LONG if is_too_long else error.code
    return AnswerError(error.status, error.message, name or error.kind, code, error.param)
