"""ASGI app of the sandbox with the providers' endpoints, and its server.

Every answer has the response header `x-sandbox: true`, which shows that no model was asked.
"""

from __future__ import annotations

import socket
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from router_service.apis.api import Api
from router_service.apis.conversation import Json, as_list, decode_object
from router_service.apis.parts import Message
from router_service.apis.registry import APIS
from router_service.core.errors import InvalidRequestError
from router_service.sandbox.answers import (
    count_tokens,
    encode_prompt,
    make_answer,
    write_answer,
    write_events,
)

HEADER = "x-sandbox"
MAX_STORED = 1000
STOP_TIMEOUT_S = 5.0
_BACKLOG = 2048

KEEP_ALIVE_S = 75
"""Time that an idle connection stays open. As with providers, it is longer than clients keep idle
connections. Otherwise, the server could close a connection just as a client sends a request."""

Endpoint = Callable[[Mapping[str, Json]], bytes | list[bytes]]
"""Function that returns the answer to a body, as JSON or as the events of a stream."""


@dataclass(frozen=True, slots=True)
class Stored:
    """An answer that can be retrieved, the items of its input, and its conversation."""

    answer: Mapping[str, Json]
    input_items: Sequence[Json]
    messages: tuple[Message, ...]


class Sandbox:
    """The endpoints. The latest `MAX_STORED` answers of APIs that store them can be retrieved."""

    def __init__(self) -> None:
        self._stored: OrderedDict[str, Stored] = OrderedDict()

    def answer(self, api: Api, body: Mapping[str, Json]) -> bytes | list[bytes]:
        """Answer a request of an API; raises InvalidRequestError."""
        request = api.read_request(body)
        previous = body.get("previous_response_id")
        if api.stores_answers and previous is not None:
            if not isinstance(previous, str) or previous not in self._stored:
                raise InvalidRequestError(
                    f"Previous response with id '{previous}' not found.",
                    param="previous_response_id",
                    code="previous_response_not_found",
                )
            messages = (*self._stored[previous].messages, *request.messages)
            request = replace(request, messages=messages)
        answer = make_answer(api, request)
        whole = write_answer(api, request, answer)
        if api.stores_answers and body.get("store") is not False:
            given = body.get("input")
            if isinstance(given, str):
                content = [{"type": "input_text", "text": given}]
                given = [{"type": "message", "role": "user", "content": content}]
            messages = (*request.messages, Message("assistant", answer.parts))
            self._stored[answer.id] = Stored(whole, as_list(given), messages)
            if len(self._stored) > MAX_STORED:
                self._stored.popitem(last=False)
        return write_events(api, request, answer) if request.stream else orjson.dumps(whole)

    async def show(self, request: Request) -> Response:
        """Return a stored answer; one is also what remains of it when it is cancelled."""
        return _json(dict(self._find(request).answer))

    async def show_input(self, request: Request) -> Response:
        """List the input of a stored answer."""
        return _json({"object": "list", "data": self._find(request).input_items, "has_more": False})

    async def delete(self, request: Request) -> Response:
        """Delete a stored answer."""
        self._find(request)
        del self._stored[request.path_params["id"]]
        return _json({"id": request.path_params["id"], "object": "response", "deleted": True})

    def _find(self, request: Request) -> Stored:
        stored = self._stored.get(request.path_params["id"])
        if stored is None:
            raise HTTPException(404, f"There is no response '{request.path_params['id']}'.")
        return stored


def create_sandbox() -> Starlette:
    """Create the app."""
    sandbox = Sandbox()
    routes = [
        Route("/v1/models", _list_models),
        Route("/healthz", _show_health),
    ]
    for api in APIS:
        path = f"/v1{api.path}"
        answering = _answering(api, partial(sandbox.answer, api))
        routes.append(Route(path, answering, methods=["POST"]))
        if api.counting_path:
            counting = _answering(api, partial(_count, api))
            routes.append(Route(f"/v1{api.counting_path}", counting, methods=["POST"]))
        if api.stores_answers:
            routes += [
                Route(f"{path}/{{id}}", sandbox.show),
                Route(f"{path}/{{id}}", sandbox.delete, methods=["DELETE"]),
                Route(f"{path}/{{id}}/cancel", sandbox.show, methods=["POST"]),
                Route(f"{path}/{{id}}/input_items", sandbox.show_input),
            ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _answer_error})


def _count(api: Api, body: Mapping[str, Json]) -> bytes:
    request = api.read_request({"max_tokens": 1, **body})
    return orjson.dumps({"input_tokens": count_tokens(encode_prompt(request))})


def _answering(api: Api, endpoint: Endpoint) -> Callable[[Request], object]:
    """Return the function that answers requests; errors have the format of the API."""

    async def answer(request: Request) -> Response:
        try:
            answered = endpoint(decode_object(await request.body()))
        except InvalidRequestError as exc:
            return _json(api.write_fault(400, exc.body()), 400)
        if isinstance(answered, bytes):
            return Response(answered, 200, {HEADER: "true"}, media_type="application/json")
        return StreamingResponse(
            _send(answered), 200, {HEADER: "true"}, media_type="text/event-stream"
        )

    return answer


async def _send(events: Sequence[bytes]) -> AsyncIterator[bytes]:
    for event in events:
        yield event


async def _list_models(_request: Request) -> Response:
    """List the sandbox's only model. The sandbox accepts requests for any model name."""
    model = {"id": "sandbox", "object": "model", "created": 0, "owned_by": "sandbox"}
    return _json({"object": "list", "data": [model]})


async def _show_health(_request: Request) -> Response:
    return _json({"status": "ok"})


async def _answer_error(request: Request, exc: Exception) -> Response:
    """Return the response for a path, a method or a stored answer that does not exist."""
    status, detail = (exc.status_code, exc.detail) if isinstance(exc, HTTPException) else (500, "")
    message = f"{detail} ({request.method} {request.url.path})"
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    return _json({"error": error}, status)


def _json(value: Mapping[str, Json], status: int = 200) -> Response:
    body = orjson.dumps(value)
    return Response(body, status, {HEADER: "true"}, media_type="application/json")


@contextmanager
def run_in_thread() -> Iterator[str]:
    """Serve the sandbox from a daemon thread, and yield its base URL, `http://HOST:PORT/v1`.

    The server stops when the block ends. The process's logging is unchanged.
    """
    with socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG) as listener:
        config = uvicorn.Config(
            create_sandbox(),
            log_config=None,
            access_log=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=1,
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(
            target=server.run, args=([listener],), name="switchcraft-sandbox", daemon=True
        )
        thread.start()
        try:
            # Connections wait at the open port until the server accepts them.
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        finally:
            server.should_exit = True
            thread.join(STOP_TIMEOUT_S)
