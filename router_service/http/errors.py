"""The translation of errors into HTTP responses, in the error format of OpenAI's API."""

from __future__ import annotations

import math
from collections.abc import Mapping

import orjson
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from router_service.core.errors import (
    BodyTimeoutError,
    BodyTooLargeError,
    DeadlineError,
    Failure,
    ForbiddenError,
    InvalidRequestError,
    ModelNotFoundError,
    NotFoundError,
    NotServedError,
    ObjectNotFoundError,
    OverloadedError,
    ReloadRefusedError,
    ResponseElsewhereError,
    ResponseNotFoundError,
    StoreError,
    SwitchcraftError,
    UnauthorizedError,
    UnsupportedEncodingError,
    UpstreamError,
    UpstreamRefusedError,
)
from router_service.requests.exchange import CLIENT_LEFT, Recorder, RequestInfo
from router_service.upstream.answers import is_openai_error

Fault = dict[str, str | None]

HANDLED = (SwitchcraftError, HTTPException, RequestValidationError, ClientDisconnect)
"""Exceptions that `respond` turns into error responses."""


_STATUSES: tuple[tuple[type[SwitchcraftError], int], ...] = (
    (UnauthorizedError, 401),
    (ForbiddenError, 403),
    (BodyTimeoutError, 408),
    (BodyTooLargeError, 413),
    (UnsupportedEncodingError, 415),
    (ModelNotFoundError, 404),
    (ResponseNotFoundError, 404),
    (ObjectNotFoundError, 404),
    (NotServedError, 404),
    (ResponseElsewhereError, 409),
    (InvalidRequestError, 400),
    (NotFoundError, 404),
    (OverloadedError, 503),
    (ReloadRefusedError, 409),
    (StoreError, 503),
)
"""HTTP status by class; the first class that matches counts. Any other error gets status 500."""

_UPSTREAM_STATUSES = {Failure.TIMEOUT: 504, Failure.COOLING_DOWN: 503, Failure.BUSY: 503}


def status_of(exc: Exception) -> int:
    """Return the HTTP status of an error."""
    if isinstance(exc, UpstreamError):
        return _UPSTREAM_STATUSES.get(exc.failure, 502)
    if isinstance(exc, OverloadedError) and exc.is_callers:
        return 429
    if isinstance(exc, NotServedError) and exc.allowed:
        return 405
    fitting = (status for kind, status in _STATUSES if isinstance(exc, kind))
    return next(fitting, 500)


def error_body(exc: Exception) -> bytes:
    """Return the response body for an error; an internal error's details are left out."""
    match exc:
        case InvalidRequestError():
            return _body(exc.body())
        case DeadlineError():
            kind, code = "upstream_error", "deadline_exceeded"
        case UpstreamError():
            kind = "upstream_error"
            code = "upstream_timeout" if exc.timed_out else "upstream_unavailable"
        case NotFoundError():
            kind, code = "invalid_request_error", "not_found"
        case ReloadRefusedError():
            kind, code = "invalid_request_error", "reload_refused"
        case OverloadedError():
            kind, code = "requests" if exc.is_callers else "server_error", exc.reason
        case StoreError():
            kind, code = "server_error", "store_unavailable"
        case _:
            message = "The gateway failed to serve this request. The cause is in the gateway's log."
            return _body(_typed(message, "server_error", "internal_error"))
    return _body(_typed(str(exc), kind, code))


def foreign_error_body(model: str, status: int) -> bytes:
    """Return the body that replaces an upstream's error that is not in OpenAI's format."""
    message = f"The upstream of model {model!r} answered with status {status}."
    return _body(_typed(message, "upstream_error", "upstream_error"))


def refused_body(exc: UpstreamRefusedError) -> bytes:
    """Return the body for an upstream's error, which is relayed if it is in OpenAI's format.

    If the upstream refused the key, the body is replaced: the key is the gateway's, and providers
    quote parts of it in their errors.
    """
    if exc.status in {401, 403}:
        message = f"The upstream of model {exc.model!r} refused the gateway's own credentials."
        return _body(_typed(message, "upstream_error", "upstream_credentials"))
    return exc.body if is_openai_error(exc.body) else foreign_error_body(exc.model, exc.status)


def retry_after(exc: Exception) -> dict[str, str]:
    """Return the `retry-after` header (RFC 9110, 10.2.3); {} if there is no time to wait."""
    wait_s = exc.retry_after_s if isinstance(exc, UpstreamError | OverloadedError) else None
    return {} if wait_s is None else {"retry-after": str(max(1, math.ceil(wait_s)))}


def error_response(exc: Exception) -> Response:
    """Return the response to a request that failed before any part of its answer was sent."""
    return _json(status_of(exc), error_body(exc), headers_of(exc))


def refuse(
    recorder: Recorder, info: RequestInfo, exc: SwitchcraftError | ClientDisconnect
) -> Response:
    """Record a request that is refused or whose client disconnected, and return the response."""
    if isinstance(exc, ClientDisconnect):
        recorder.left(info, CLIENT_LEFT)
        return Response(status_code=CLIENT_LEFT)
    if isinstance(exc, OverloadedError):
        recorder.shed(exc.reason)
    recorder.refused(info, status_of(exc))
    return error_response(exc)


def headers_of(exc: Exception) -> dict[str, str]:
    """Return the headers that an error's status requires (RFC 9110, sections 10.2.3 and 11.6)."""
    match exc:
        case UnauthorizedError():
            basic = 'Basic realm="Switchcraft", charset="UTF-8"'  # RFC 7617
            return {"www-authenticate": basic if exc.asks_browser else "Bearer"}
        case NotServedError() if exc.allowed:
            return {"allow": ", ".join(exc.allowed)}  # RFC 9110, section 15.5.6
        case BodyTimeoutError():
            return {"connection": "close"}  # the rest of the body is never read
        case _:
            return retry_after(exc)


async def respond(request: Request, exc: Exception) -> Response:
    """Return the response, in OpenAI's format, to an error of the app or of the framework.

    `middleware.Accounting` answers unexpected errors.
    """
    match exc:
        case ClientDisconnect():
            return Response(status_code=CLIENT_LEFT)
        case HTTPException():  # the framework knows no such path or method
            message = f"{exc.detail} ({request.method} {request.url.path})"
            body = _body(_typed(message, "invalid_request_error", None))
            return _json(exc.status_code, body, exc.headers)
        case RequestValidationError():
            first = exc.errors()[0]
            param = ".".join(map(str, first["loc"][1:]))
            message = f"Invalid '{param}': {first['msg']}."
            fault = _typed(message, "invalid_request_error", None) | {"param": param}
            return _json(422, _body(fault))
        case _:
            return error_response(exc)


def _typed(message: str, kind: str, code: str | None) -> Fault:
    return {"message": message, "type": kind, "param": None, "code": code}


def _body(fault: Fault) -> bytes:
    return orjson.dumps({"error": fault})


def _json(status: int, body: bytes, headers: Mapping[str, str] | None = None) -> Response:
    return Response(body, status, dict(headers or {}), media_type="application/json")
