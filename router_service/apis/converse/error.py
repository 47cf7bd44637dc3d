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

STATUSES = {
    "validationexception": 400,
    "accessdeniedexception": 403,
    "resourcenotfoundexception": 404,
    "modelerrorexception": 500,  # its own status is 424
    "modelstreamerrorexception": 500,  # 424
    "modeltimeoutexception": 504,  # 408, with which servers refuse slow clients
    "servicequotaexceededexception": 429,  # 400
    "modelnotreadyexception": 503,  # 429, but no limit is exceeded
    "throttlingexception": 429,
    "internalserverexception": 500,
    "serviceunavailableexception": 503,
}
"""The status that each exception stands for, by its name in lower case (Amazon Bedrock API
reference: "ConverseStream", errors)."""

_FIELDS = frozenset(
    ("message", "Message", "originalMessage", "originalStatusCode", "resourceName", "__type")
)
"""Fields of an exception."""

_TOO_LONG = re.compile("(input|prompt) is too long|too many input tokens|maximum context length")


def is_error(value: Mapping[str, Json]) -> bool:
    """Return whether a body or an event is an error, even if the status was a success."""
    return is_error_body(value) or answer_errors.is_error(value)


def is_error_body(value: Json) -> bool:
    """Return whether a decoded body is an error of AWS, which has only a message."""
    return _has_message(value) or _exception_in(value) is not None


def error_fields(value: Json) -> Json:
    """Return the message of an error, with its status as the code."""
    name = _exception_in(value)
    if name is None:
        return answer_errors.error_fields(value)
    return {"message": value[name].get("message"), "code": _status_of(name)}


def read_error(value: Json, status: int) -> AnswerError:
    """Return what an error says. A status below 400 is replaced by the exception's."""
    name = _exception_in(value)
    fields = value if name is None else value[name]
    if name is not None and status < 400:
        status = _status_of(name)
    if isinstance(fields, dict) and "message" not in fields and "Message" in fields:
        fields = {**fields, "message": fields["Message"]}
    error = answer_errors.read_error(fields, status)
    is_too_long = error.status in {400, 413} and _TOO_LONG.search(error.message.lower())
    code = TOO_LONG if is_too_long else error.code
    return AnswerError(error.status, error.message, name or error.kind, code, error.param)


def _exception_in(value: Json) -> str | None:
    """Return the name of the exception that an event of a stream reports, if it reports one."""
    if isinstance(value, dict) and len(value) == 1:
        name: str = next(iter(value))
        is_known = name.lower() in STATUSES and isinstance(value[name], dict)
        if is_known or _has_message(value[name]):
            return name
    return None


def _has_message(value: Json) -> bool:
    is_exception = isinstance(value, dict) and value.keys() <= _FIELDS
    return is_exception and isinstance(value.get("message", value.get("Message")), str)


def _status_of(name: str) -> int:
    return STATUSES.get(name.lower(), 500)
