"""The translation of errors into HTTP responses, in the error format of the client's API."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import orjson
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Scope

from router_service.apis.answer_errors import is_openai_error, unwrapped, write_openai_error
from router_service.apis.api import Api
from router_service.apis.registry import APIS
from router_service.core.errors import (
    AdmissionError,
    DatabaseError,
    Failure,
    InvalidRequestError,
    OverloadedError,
    SwitchcraftError,
    UpstreamError,
    UpstreamRefusedError,
)
from router_service.core.record import CLIENT_LEFT
from router_service.requests.call import Call
from router_service.runtime.gateway import Gateway
from router_service.upstream.bodies import decode_json

INTERNAL = "internal_error"
"""Code of errors that clients can do nothing about."""

CALL = "call"
"""Key of the request's `Call` in `scope["state"]`."""

Fault = dict[str, str | None]

HANDLED = (SwitchcraftError, HTTPException, RequestValidationError, ClientDisconnect)
"""Exceptions that `respond` turns into error responses."""


_UPSTREAM_STATUSES = {
    Failure.TIMEOUT: 504,
    Failure.COOLING_DOWN: 503,
    Failure.BUSY: 503,
    Failure.QUOTA: 429,
}


def status_of(exc: Exception) -> int:
    """Return the HTTP status of an error."""
    if isinstance(exc, UpstreamError):
        return _UPSTREAM_STATUSES.get(exc.failure, 502)
    return exc.status if isinstance(exc, SwitchcraftError) else 500


@dataclass(frozen=True, slots=True)
class ErrorFormat:
    """The format of one request's errors: that of its API."""

    api: Api | None = None
    """The API; None for OpenAI's endpoints without translation, whose errors are OpenAI's."""
    request_id: str = ""

    @classmethod
    def of(cls, scope: Scope) -> ErrorFormat:
        """Return the format for a request's path, which may be unknown or not allowed."""
        path: str = scope["path"]
        call: Call | None = scope.get("state", {}).get(CALL)
        api = APIS.below(path.removeprefix("/v1")) if path.startswith("/v1/") else None
        return cls(api, call.request_id if call else "")

    def write(self, status: int, fault: Fault) -> bytes:
        """Return the body of an error, given OpenAI's fields of it."""
        if self.api is None:
            return orjson.dumps({"error": fault})
        return orjson.dumps(self.api.write_fault(status, fault, request_id=self.request_id or None))

    def accepts(self, body: bytes) -> bool:
        """Return whether a body is an error in this format, so that clients can read it."""
        value = decode_json(body)
        return is_openai_error(value) if self.api is None else self.api.is_error_body(value)

    def event(self, body: bytes, number: int) -> bytes:
        """Return the event that ends a broken stream, from the body of an error.

        `number` is the event's sequence number, if the API numbers its events.
        """
        if self.api is None:
            return b"data: " + body + b"\n\n"
        return self.api.error_event(body, number)


OPENAI_FORMAT = ErrorFormat()


def error_body(exc: Exception, form: ErrorFormat = OPENAI_FORMAT) -> bytes:
    """Return the response body for an error; an internal error's details are left out."""
    if isinstance(exc, InvalidRequestError):
        return form.write(exc.status, exc.body())
    code, message = code_of(exc), str(exc)
    if isinstance(exc, DatabaseError):
        message = (
            "The gateway's database cannot be used at the moment. Try again later. The cause is in "
            "the gateway's log."
        )
    elif code == INTERNAL:
        message = "The gateway failed to serve this request. The cause is in the gateway's log."
    kind = exc.kind if isinstance(exc, SwitchcraftError) else SwitchcraftError.kind
    return form.write(status_of(exc), _typed(message, kind, code))


def code_of(exc: Exception) -> str | None:
    """Return the code of an error, which names its kind for programs and logs."""
    if isinstance(exc, InvalidRequestError):
        return exc.code
    return (exc.code if isinstance(exc, SwitchcraftError) else None) or INTERNAL


def upstream_error_body(model: str, status: int, body: bytes, form: ErrorFormat) -> bytes:
    """Return an upstream's error for the client: translated, or replaced if it is unreadable."""
    if form.accepts(body):
        return body
    value = unwrapped(decode_json(body))
    source = next((api for api in APIS.of_upstreams if api.is_error_body(value)), None)
    if source is None:
        message = f"The upstream of model {model!r} answered with status {status}."
        return form.write(status, _typed(message, "upstream_error", "upstream_error"))
    error = source.read_error(value, status)
    if form.api is None:
        return orjson.dumps(write_openai_error(error))
    return orjson.dumps(form.api.write_error(error, request_id=form.request_id or None))


def refused_body(exc: UpstreamRefusedError, form: ErrorFormat = OPENAI_FORMAT) -> bytes:
    """Return the body for an upstream's error, which is relayed or translated.

    If the upstream refused the key, the body is replaced: the key is the gateway's, and providers
    quote parts of it in their errors.
    """
    if exc.status in {401, 403}:
        message = f"The upstream of model {exc.model!r} refused the gateway's own credentials."
        return form.write(exc.status, _typed(message, "upstream_error", "upstream_credentials"))
    return upstream_error_body(exc.model, exc.status, exc.body, form)


def retry_after(exc: Exception) -> dict[str, str]:
    """Return the `retry-after` header (RFC 9110, 10.2.3); {} if there is no time to wait."""
    wait_s = exc.retry_after_s if isinstance(exc, SwitchcraftError) else None
    return {} if wait_s is None else {"retry-after": str(max(1, math.ceil(wait_s)))}


def error_response(exc: Exception, scope: Scope) -> Response:
    """Return the response to a request that failed before any part of its answer was sent."""
    return _json(status_of(exc), error_body(exc, ErrorFormat.of(scope)), headers_of(exc))


def refuse(gateway: Gateway, scope: Scope, exc: SwitchcraftError | ClientDisconnect) -> Response:
    """Record a request that is refused or whose client disconnected, and return the response."""
    call: Call = scope["state"][CALL]
    if isinstance(exc, ClientDisconnect):
        gateway.recorder.ended(call, CLIENT_LEFT)
        return Response(status_code=CLIENT_LEFT)
    if isinstance(exc, OverloadedError):
        gateway.metrics.refused_requests.labels("overload", exc.reason).inc()
    call.refusal = code_of(exc)
    gateway.recorder.ended(call, status_of(exc))
    return error_response(exc, scope)


def headers_of(exc: Exception) -> dict[str, str]:
    """Return the headers that an error's status requires (RFC 9110, sections 10.2.3 and 11.6)."""
    match exc:
        case InvalidRequestError(status=401):
            # Not Basic: a browser would then ask the page's user for a password in its own dialog.
            return {"www-authenticate": "Bearer"}
        case InvalidRequestError(allow=str(methods)):
            return {"allow": methods}  # RFC 9110, section 15.5.6
        case InvalidRequestError(status=408):
            return {"connection": "close"}  # the rest of the body is never read
        case AdmissionError():
            named = {name.decode(): value.decode() for name, value in exc.headers}
            if not exc.should_retry:
                # The clients of OpenAI and Anthropic repeat other requests with status 429.
                named["x-should-retry"] = "false"
            if exc.retry_after_s is not None:  # OpenAI's clients read it before `retry-after`
                named["retry-after-ms"] = str(max(1, math.ceil(exc.retry_after_s * 1000)))
            return named | retry_after(exc)
        case _:
            return retry_after(exc)


async def respond(request: Request, exc: Exception) -> Response:
    """Return the response to an error of the app or of the framework.

    `front.Front` answers unexpected errors.
    """
    form = ErrorFormat.of(request.scope)
    match exc:
        case ClientDisconnect():
            return Response(status_code=CLIENT_LEFT)
        case HTTPException():  # the framework knows no such path or method
            message = f"{exc.detail} ({request.method} {request.url.path})"
            body = form.write(exc.status_code, _typed(message, "invalid_request_error", None))
            return _json(exc.status_code, body, exc.headers)
        case RequestValidationError():
            first = exc.errors()[0]
            param = ".".join(map(str, first["loc"][1:]))
            message = f"Invalid '{param}': {first['msg']}."
            fault = _typed(message, "invalid_request_error", None) | {"param": param}
            return _json(422, form.write(422, fault))
        case _:
            return error_response(exc, request.scope)


def _typed(message: str, kind: str, code: str | None) -> Fault:
    return {"message": message, "type": kind, "param": None, "code": code}


def _json(status: int, body: bytes, headers: Mapping[str, str] | None = None) -> Response:
    return Response(body, status, dict(headers or {}), media_type="application/json")
