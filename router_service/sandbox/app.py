"""The sandbox as an ASGI app: OpenAI's inference endpoints, models, health, and what it has seen.

Answers are OpenAI's, and each is marked by the response header `x-sandbox: true`. A request may
ask for faults in a header of the same name, and `PUT /sandbox/faults/{model}` sets those of all
requests for a model that ask for none themselves; see `faults.Faults`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from router_service.core.errors import InvalidRequestError, NotFoundError
from router_service.core.messages import Json, decode_object, read_model
from router_service.sandbox import replies
from router_service.sandbox.connection import MARK, ClientLeftError, Connection
from router_service.sandbox.faults import HEADER, Faults, ModelFaults
from router_service.sandbox.playing import Reply, error_body, play, refuse
from router_service.sandbox.records import Counts, Ending, KeptRequest, Seen
from router_service.sandbox.responses import Responses, Stored

Answerer = Callable[[Mapping[str, Json], Faults], Reply]
"""Makes the good answer to a body; raises InvalidRequestError."""


class Backstage:
    """What endpoints share: counts, kept requests, stored responses, and the faults of models."""

    def __init__(self, keep_requests: int) -> None:
        self.seen = Seen()
        self.kept: deque[KeptRequest] = deque(maxlen=keep_requests)
        self.faults = ModelFaults()
        self.responses = Responses()


def create_sandbox(*, keep_requests: int = 0) -> Starlette:
    """Create the app; it keeps the last `keep_requests` requests for tests to look at.

    `app.state.backstage` holds what `GET /sandbox/stats`, `/sandbox/requests` and
    `/sandbox/faults` show. Keep requests only in tests: what is kept has the clients' headers in
    it, and anyone who reaches the app can read it.
    """
    backstage = Backstage(keep_requests)
    answerers: Mapping[str, Answerer] = {
        "/v1/chat/completions": replies.chat,
        "/v1/responses": backstage.responses.answer,
        "/v1/completions": replies.completions,
        "/v1/embeddings": replies.embeddings,
    }
    routes = [
        *(Route(p, _Inference(backstage, a), methods=["POST"]) for p, a in answerers.items()),
        Route("/v1/responses/{id}", _get_response),
        Route("/v1/responses/{id}", _delete_response, methods=["DELETE"]),
        Route("/v1/responses/{id}/cancel", _cancel_response, methods=["POST"]),
        Route("/v1/responses/{id}/input_items", _input_items),
        Route("/v1/models", _models),
        Route("/healthz", _health),
        Route("/sandbox/stats", _stats),
        Route("/sandbox/requests", _requests),
        Route("/sandbox/faults", _faults),
        Route("/sandbox/faults/{model:path}", _put_faults, methods=["PUT"]),
    ]
    handlers = {
        HTTPException: _http_error,
        InvalidRequestError: _refused,
        NotFoundError: _not_found,
    }
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.state.backstage = backstage
    return app


class _Inference:
    """An endpoint that answers for a model, as an ASGI app of its own."""

    def __init__(self, backstage: Backstage, answer: Answerer) -> None:
        self._backstage = backstage
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        counts = [self._backstage.seen.total]
        counts[0].requests += 1
        ending = Ending.FAILED
        try:
            ending = await self._serve(scope, Connection(receive, send), counts)
        except ClientLeftError:
            ending = Ending.CANCELLED
        except asyncio.CancelledError:
            ending = Ending.CANCELLED
            raise
        finally:
            for each in counts:
                each.endings[ending] += 1

    async def _serve(self, scope: Scope, line: Connection, counts: list[Counts]) -> Ending:
        """Answer a request, which also counts for its model once that is read."""
        body = await line.read_body()
        self._keep(scope, body)
        try:
            values = decode_object(body)
            model = read_model(values)
            counts.append(self._backstage.seen.by_model[model])
            counts[-1].requests += 1
            faults = self._faults(scope, model)
            _check_stream_options(values, faults)
            reply = self._answer(values, faults)
        except InvalidRequestError as exc:
            return await refuse(line, exc)
        return await play(line, reply, faults)

    def _keep(self, scope: Scope, body: bytes) -> None:
        if self._backstage.kept.maxlen:
            self._backstage.kept.append(KeptRequest(scope["path"], tuple(_headers(scope)), body))

    def _faults(self, scope: Scope, model: str) -> Faults:
        """Return what the request's header asks for, else what its model is to meet."""
        given = [value for name, value in scope["headers"] if name == MARK[0]]
        if given:
            return Faults.parse_header(b",".join(given).decode("latin-1"))
        return self._backstage.faults.take(model)


def _check_stream_options(values: Mapping[str, Json], faults: Faults) -> None:
    if faults.reject_stream_options and "stream_options" in values:
        raise InvalidRequestError(
            "Unrecognized request argument supplied: stream_options",
            param="stream_options",
            code="unknown_parameter",
        )


def _headers(scope: Scope) -> Iterable[tuple[str, str]]:
    return ((name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"])


async def _refused(_request: Request, exc: Exception) -> Response:
    if not isinstance(exc, InvalidRequestError):
        raise exc
    return _json(orjson.dumps({"error": exc.body()}), 400)


async def _http_error(request: Request, exc: Exception) -> Response:
    """Answer for a path or a method that does not exist."""
    if not isinstance(exc, HTTPException):
        raise exc
    message = f"{exc.detail} ({request.method} {request.url.path})"
    body = error_body(message, "invalid_request_error", None, None)
    return _json(body, exc.status_code, exc.headers)


async def _not_found(_request: Request, exc: Exception) -> Response:
    return _json(error_body(str(exc), "invalid_request_error", None, None), 404)


async def _get_response(request: Request) -> Response:
    return _json(orjson.dumps(_stored(request).response))


async def _delete_response(request: Request) -> Response:
    response_id = request.path_params["id"]
    _backstage(request).responses.delete(response_id)
    told = {"id": response_id, "object": "response.deleted", "deleted": True}
    return _json(orjson.dumps(told))


async def _cancel_response(request: Request) -> Response:
    stored = _backstage(request).responses.cancel(request.path_params["id"])
    return _json(orjson.dumps(stored.response))


async def _input_items(request: Request) -> Response:
    items = _stored(request).input_items
    ends = {"first_id": items[0]["id"], "last_id": items[-1]["id"]} if items else {}
    return _json(orjson.dumps({"object": "list", "data": items, "has_more": False, **ends}))


def _stored(request: Request) -> Stored:
    return _backstage(request).responses.get(request.path_params["id"])


async def _models(_request: Request) -> Response:
    model = {"id": "sandbox", "object": "model", "created": 0, "owned_by": "sandbox"}
    return _json(orjson.dumps({"object": "list", "data": [model]}))


async def _health(_request: Request) -> Response:
    return _json(b'{"status":"ok"}')


async def _stats(request: Request) -> Response:
    return _json(orjson.dumps(_backstage(request).seen.to_json()))


async def _requests(request: Request) -> Response:
    """Show the kept requests; 404 where none are kept, so that no test passes for that reason."""
    kept = _backstage(request).kept
    if not kept.maxlen:
        raise HTTPException(404, "No requests are kept; create the sandbox with keep_requests")
    return _json(orjson.dumps([entry.to_json() for entry in kept]))


async def _faults(request: Request) -> Response:
    return _json(orjson.dumps(_backstage(request).faults.to_json()))


async def _put_faults(request: Request) -> Response:
    """Set the faults of a model, in the header's words; an empty body clears them."""
    text = (await request.body()).decode("latin-1")
    _backstage(request).faults.put(request.path_params["model"], text)
    return await _faults(request)


def _backstage(request: Request) -> Backstage:
    backstage: Backstage = request.app.state.backstage
    return backstage


def _json(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    marked = {HEADER: "true", **(headers or {})}
    return Response(body, status, marked, media_type="application/json")
