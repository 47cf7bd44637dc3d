"""The sandbox as an ASGI app: chat completions, models, health, and what it has seen.

Answers are OpenAI's, and each is marked by the response header `x-sandbox: true`. A request may
ask for faults in a header of the same name; see `faults.Faults`.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Iterable, Mapping

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from router_service.core.errors import InvalidRequestError
from router_service.core.messages import decode_object
from router_service.sandbox.answers import encode_prompt, make_answer, read_request
from router_service.sandbox.connection import JSON_TYPE, MARK, ClientLeftError, Connection
from router_service.sandbox.faults import HEADER, Faults
from router_service.sandbox.records import KeptRequest, Seen
from router_service.sandbox.wire import (
    Completion,
    count_usage,
    error_body,
    read_copies,
    read_include_usage,
)

_EVENTS = b"text/event-stream; charset=utf-8"
_BROKEN_EVENT = b'data: {"id":"chatcmpl-sandbox-\n\n'
_BROKEN_BODY = b'{"id":"chatcmpl-sandbox-'


def create_sandbox(*, keep_requests: int = 0) -> Starlette:
    """Create the app; it keeps the last `keep_requests` chat requests for tests to look at.

    `app.state.seen` is its `Seen`, and `app.state.kept` its KeptRequest values, oldest first;
    `GET /sandbox/stats` and `GET /sandbox/requests` show them. Use a number only in tests: what is
    kept has the clients' headers in it, and anyone who reaches the app can read it.
    """
    seen = Seen()
    kept: deque[KeptRequest] = deque(maxlen=keep_requests)
    routes = [
        Route("/v1/chat/completions", _ChatCompletions(seen, kept), methods=["POST"]),
        Route("/v1/models", _models),
        Route("/healthz", _health),
        Route("/sandbox/stats", _stats),
        Route("/sandbox/requests", _requests),
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _http_error})
    app.state.seen = seen
    app.state.kept = kept
    return app


class _ChatCompletions:
    """The endpoint of chat completions, as an ASGI app of its own."""

    def __init__(self, seen: Seen, kept: deque[KeptRequest]) -> None:
        self._seen = seen
        self._kept = kept

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._seen.requests += 1
        try:
            await self._serve(scope, Connection(receive, send))
        except ClientLeftError:
            self._seen.cancelled += 1
        except asyncio.CancelledError:
            self._seen.cancelled += 1
            raise

    async def _serve(self, scope: Scope, line: Connection) -> None:
        body = await line.read_body()
        if self._kept.maxlen:
            self._kept.append(KeptRequest(tuple(_headers(scope)), body))
        try:
            faults = _read_faults(scope)
            completion, is_stream = _complete(body, faults)
        except InvalidRequestError as exc:
            await self._fail(line, 400, _refusal(exc))
            return
        self._seen.by_model[completion.model] += 1
        await line.wait(None if faults.hang else faults.delay_s)
        if faults.status is not None:
            await self._fail(line, faults.status, _asked_error(faults.status))
        elif is_stream:
            await self._stream(line, completion, faults)
        else:
            await self._answer(line, completion, faults)

    async def _fail(self, line: Connection, status: int, body: bytes) -> None:
        await line.send_whole(status, body)
        self._seen.failed += 1

    async def _answer(self, line: Connection, completion: Completion, faults: Faults) -> None:
        body = _BROKEN_BODY if faults.malformed else completion.body()
        if faults.cut_after is None:
            await line.send_whole(200, body)
            self._seen.completed += 1
        else:
            await line.start(200, JSON_TYPE, length=len(body))
            await line.send(body[: len(body) // 2], more=True)
            self._seen.cut += 1

    async def _stream(self, line: Connection, completion: Completion, faults: Faults) -> None:
        """Send the events; a cut returns without the last part, so that the server hangs up."""
        events = list(completion.events())
        if faults.malformed:
            events[1:-1] = [_BROKEN_EVENT]
        await line.start(200, _EVENTS)
        await line.send_events(events[: faults.cut_after], faults.chunk_delay_s)
        if faults.cut_after is None:
            await line.send(b"", more=False)
            self._seen.completed += 1
        else:
            self._seen.cut += 1


def _complete(body: bytes, faults: Faults) -> tuple[Completion, bool]:
    """Return what to answer, and whether as a stream; raises InvalidRequestError."""
    values = decode_object(body)
    request = read_request(values)
    copies = read_copies(values)
    prompt = encode_prompt(values)
    answer = make_answer(values, request, prompt)
    completion = Completion(
        completion_id=f"chatcmpl-sandbox-{secrets.token_hex(12)}",
        created=int(time.time()),
        model=request.model,
        answer=answer,
        copies=copies,
        usage=None if faults.no_usage else count_usage(prompt, answer, copies),
        include_usage=read_include_usage(values),
    )
    return completion, request.stream


def _headers(scope: Scope) -> Iterable[tuple[str, str]]:
    return ((name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"])


def _read_faults(scope: Scope) -> Faults:
    given = [value for name, value in scope["headers"] if name == MARK[0]]
    return Faults.parse(b",".join(given).decode("latin-1")) if given else _FAULTLESS


_FAULTLESS = Faults()


def _refusal(exc: InvalidRequestError) -> bytes:
    """Return a refusal as OpenAI writes it."""
    return error_body(exc.message, "invalid_request_error", exc.param, exc.code)


def _asked_error(status: int) -> bytes:
    usual = ("server_error", None) if status >= 500 else ("invalid_request_error", None)
    kind, code = _ERRORS.get(status, usual)
    message = f"The sandbox fails with status {status}, as the header {HEADER} asked."
    return error_body(message, kind, None, code)


_ERRORS: Mapping[int, tuple[str, str | None]] = {
    401: ("invalid_request_error", "invalid_api_key"),
    404: ("invalid_request_error", "model_not_found"),
    429: ("requests", "rate_limit_exceeded"),
}
"""OpenAI's `type` and `code` of the statuses that have some of their own."""


async def _http_error(request: Request, exc: Exception) -> Response:
    """Answer for a path or a method that does not exist."""
    if not isinstance(exc, HTTPException):
        raise exc
    message = f"{exc.detail} ({request.method} {request.url.path})"
    body = error_body(message, "invalid_request_error", None, None)
    return _json(body, exc.status_code, exc.headers)


async def _models(_request: Request) -> Response:
    model = {"id": "sandbox", "object": "model", "created": 0, "owned_by": "sandbox"}
    return _json(orjson.dumps({"object": "list", "data": [model]}))


async def _health(_request: Request) -> Response:
    return _json(b'{"status":"ok"}')


async def _stats(request: Request) -> Response:
    seen: Seen = request.app.state.seen
    return _json(orjson.dumps(seen.to_json()))


async def _requests(request: Request) -> Response:
    """Show the kept requests; 404 where none are kept, so that no test passes for that reason."""
    kept: deque[KeptRequest] = request.app.state.kept
    if not kept.maxlen:
        raise HTTPException(404, "No requests are kept; create the sandbox with keep_requests")
    return _json(orjson.dumps([entry.to_json() for entry in kept]))


def _json(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    marked = {HEADER: "true", **(headers or {})}
    return Response(body, status, marked, media_type="application/json")
