"""ASGI app of the sandbox with the providers' endpoints and endpoints for tests, and its server.

Every answer has the response header `x-sandbox: true`. A request may ask for faults (deliberate
errors and delays) in its own `x-sandbox` header. `PUT /sandbox/faults/{model}` sets the faults for
requests to a model without this header. See `sending.Faults`.
"""

from __future__ import annotations

import asyncio
import base64
import socket
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from router_service.apis.chat.api import CHAT
from router_service.apis.conversation import Json, decode_object, read_model
from router_service.apis.messages.api import MESSAGES
from router_service.apis.registry import APIS
from router_service.apis.responses.api import RESPONSES
from router_service.core.errors import InvalidRequestError, NotFoundError, SwitchcraftError
from router_service.sandbox.completions import chat, completions, embeddings
from router_service.sandbox.messages import count_message_tokens, messages
from router_service.sandbox.responses import Responses
from router_service.sandbox.sending import (
    HEADER,
    ClientConnection,
    ClientLeftError,
    Faults,
    ModelFaults,
    Reply,
    RequestEnding,
    error_body,
)

START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 5.0
_DRAIN_TIMEOUT_S = 1  # requests that hang on purpose must not delay the end of the process
_BACKLOG = 2048

KEEP_ALIVE_S = 75
"""Time that an idle connection stays open. As with providers, it is longer than clients keep idle
connections. Otherwise, the server could close a connection just as a client sends a request."""

Endpoint = Callable[[Mapping[str, Json], Faults], Reply]
"""Function that returns the faultless answer to a body, or raises InvalidRequestError."""


@dataclass(frozen=True, slots=True)
class KeptRequest:
    """A request as it arrived: path, headers in their order, and the unchanged body."""

    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def to_json(self) -> dict[str, Json]:
        """Return the request as `GET /sandbox/requests` shows it."""
        return {
            "path": self.path,
            "headers": [list(header) for header in self.headers],
            "body_base64": base64.b64encode(self.body).decode(),
        }


@dataclass(slots=True)
class RequestCounts:
    """Number of requests, in total and by ending; requests without an ending are in flight."""

    requests: int = 0
    endings: Counter[RequestEnding] = field(default_factory=Counter)

    def to_json(self) -> dict[str, Json]:
        """Return each count by its name."""
        ended = {ending.value: self.endings[ending] for ending in RequestEnding}
        in_flight = self.requests - self.endings.total()
        return {"requests": self.requests, **ended, "in_flight": in_flight}


class SandboxState:
    """State that the endpoints share: counts, kept requests, stored responses, and faults."""

    def __init__(self, keep_requests: int) -> None:
        self.total = RequestCounts()
        self.by_model: defaultdict[str, RequestCounts] = defaultdict(RequestCounts)
        self.kept: deque[KeptRequest] = deque(maxlen=keep_requests)
        self.faults = ModelFaults()
        self.responses = Responses()


def create_sandbox(*, keep_requests: int = 0) -> Starlette:
    """Create the app; it keeps the last `keep_requests` requests for tests.

    Keep requests only in tests: they contain the clients' headers, and everyone who can connect can
    read them at `/sandbox/requests`.
    """
    state = SandboxState(keep_requests)
    endpoints: Mapping[str, Endpoint] = {
        f"/v1{CHAT.path}": chat,
        f"/v1{RESPONSES.path}": state.responses.answer,
        f"/v1{MESSAGES.path}": messages,
        f"/v1{MESSAGES.counting_path}": count_message_tokens,
        "/v1/completions": completions,
        "/v1/embeddings": embeddings,
    }
    routes = [
        *(Route(p, _Inference(state, e), methods=["POST"]) for p, e in endpoints.items()),
        Route("/v1/responses/{id}", get_response),
        Route("/v1/responses/{id}", delete_response, methods=["DELETE"]),
        Route("/v1/responses/{id}/cancel", cancel_response, methods=["POST"]),
        Route("/v1/responses/{id}/input_items", list_input_items),
        Route("/v1/models", list_models),
        Route("/healthz", show_health),
        Route("/sandbox/stats", show_stats),
        Route("/sandbox/requests", show_requests),
        Route("/sandbox/faults", show_faults),
        Route("/sandbox/faults/{model:path}", put_faults, methods=["PUT"]),
    ]
    errors = (HTTPException, InvalidRequestError, NotFoundError)
    app = Starlette(routes=routes, exception_handlers=dict.fromkeys(errors, answer_error))
    app.state.sandbox = state
    return app


class _Inference:
    """ASGI app of an endpoint that answers for a model."""

    def __init__(self, state: SandboxState, endpoint: Endpoint) -> None:
        self._state = state
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, and count its ending in total and, if the model is known, by model."""
        connection = ClientConnection(receive, send)
        counts = [self._state.total]
        counts[0].requests += 1
        ending = RequestEnding.FAILED
        try:
            body = await connection.read_body()
            headers = [(k.decode("latin-1"), v.decode("latin-1")) for k, v in scope["headers"]]
            if self._state.kept.maxlen:
                self._state.kept.append(KeptRequest(scope["path"], tuple(headers), body))
            try:
                values = decode_object(body)
                model = read_model(values)
                counts.append(self._state.by_model[model])
                counts[-1].requests += 1
                requested = [value for name, value in headers if name == HEADER]
                faults = (
                    Faults.parse_header(",".join(requested))
                    if requested
                    else self._state.faults.take(model)
                )
                faults.check_request(values)
                reply = self._endpoint(values, faults)
            except InvalidRequestError as exc:
                api = APIS.below(scope["path"].removeprefix("/v1"))
                fault = exc.body()
                body = orjson.dumps(api.write_fault(400, fault) if api else {"error": fault})
                await connection.send_whole(400, body)
            else:
                ending = await connection.send_reply(reply, faults)
        except ClientLeftError:
            ending = RequestEnding.CANCELLED
        except asyncio.CancelledError:
            ending = RequestEnding.CANCELLED
            raise
        finally:
            for each in counts:
                each.endings[ending] += 1


async def answer_error(request: Request, exc: Exception) -> Response:
    """Return the response for an error, in OpenAI's format."""
    if isinstance(exc, InvalidRequestError):
        return _json(orjson.dumps({"error": exc.body()}), 400)
    if isinstance(exc, HTTPException):  # a path or a method that does not exist
        message = f"{exc.detail} ({request.method} {request.url.path})"
        return _json(
            error_body(None, exc.status_code, message, "invalid_request_error"),
            exc.status_code,
            exc.headers,
        )
    return _json(error_body(None, 404, str(exc), "invalid_request_error"), 404)


async def get_response(request: Request) -> Response:
    """Return a stored response."""
    stored = _state(request).responses.get(request.path_params["id"])
    return _json(orjson.dumps(stored.response))


async def delete_response(request: Request) -> Response:
    """Delete a stored response."""
    response_id = request.path_params["id"]
    _state(request).responses.delete(response_id)
    deleted = {"id": response_id, "object": "response.deleted", "deleted": True}
    return _json(orjson.dumps(deleted))


async def cancel_response(request: Request) -> Response:
    """Return a background response unchanged, because it has always finished already."""
    stored = _state(request).responses.cancel(request.path_params["id"])
    return _json(orjson.dumps(stored.response))


async def list_input_items(request: Request) -> Response:
    """List the input of a stored response."""
    items = _state(request).responses.get(request.path_params["id"]).input_items
    ends = {"first_id": items[0]["id"], "last_id": items[-1]["id"]} if items else {}
    return _json(orjson.dumps({"object": "list", "data": items, "has_more": False, **ends}))


async def list_models(_request: Request) -> Response:
    """List the sandbox's only model. The sandbox accepts requests for any model name."""
    model = {"id": "sandbox", "object": "model", "created": 0, "owned_by": "sandbox"}
    return _json(orjson.dumps({"object": "list", "data": [model]}))


async def show_health(_request: Request) -> Response:
    """Return status 200."""
    return _json(b'{"status":"ok"}')


async def show_stats(request: Request) -> Response:
    """Show the counts in total and by model; the total includes requests without a model."""
    state = _state(request)
    by_model = {model: counts.to_json() for model, counts in state.by_model.items()}
    return _json(orjson.dumps({**state.total.to_json(), "by_model": by_model}))


async def show_requests(request: Request) -> Response:
    """Show the kept requests; status 404 if none are kept, so that no test checks nothing."""
    kept = _state(request).kept
    if not kept.maxlen:
        raise HTTPException(404, "No requests are kept; create the sandbox with keep_requests")
    return _json(orjson.dumps([entry.to_json() for entry in kept]))


async def show_faults(request: Request) -> Response:
    """Show the faults by model."""
    return _json(orjson.dumps(_state(request).faults.to_json()))


async def put_faults(request: Request) -> Response:
    """Set the faults of a model, in the header's format; an empty body clears them."""
    text = (await request.body()).decode("latin-1")
    _state(request).faults.put(request.path_params["model"], text)
    return await show_faults(request)


def _state(request: Request) -> SandboxState:
    state: SandboxState = request.app.state.sandbox
    return state


def _json(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    marked = {HEADER: "true", **(headers or {})}
    return Response(body, status, marked, media_type="application/json")


class ThreadServer(uvicorn.Server):
    """uvicorn server that another thread starts and stops without delay.

    uvicorn looks for `should_exit` every 0.1 s and then waits 0.1 s for connections to close. Tests
    start and stop hundreds of servers.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the server and set `ready`."""
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        await super().startup(sockets=sockets)
        self.ready.set()

    async def main_loop(self) -> None:
        """Serve until `stop`; update the date header every second."""
        while not self._stopping.is_set():
            await self.on_tick(0)
            with suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self._stopping.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close connections as soon as their answers end, or after the configured time."""
        for listener in (*self.servers, *(sockets or ())):
            listener.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                # uvicorn has no event for the end of all connections and tasks.
                while self.server_state.connections or self.server_state.tasks:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
        for task in self.server_state.tasks:
            task.cancel()
        await self.lifespan.shutdown()

    def stop(self) -> None:
        """End the server from another thread."""
        self._loop.call_soon_threadsafe(self._stopping.set)


@contextmanager
def run_in_thread(
    host: str = "127.0.0.1", port: int = 0, *, keep_requests: int = 0
) -> Iterator[str]:
    """Serve the sandbox from a daemon thread, and yield its base URL, `http://HOST:PORT/v1`.

    Port 0 chooses a free port. The server is ready when the URL is yielded, and stops when the
    block ends. Raise OSError if the port is taken. The process's logging is unchanged. If a request
    asks for a broken connection, the logger `uvicorn.error` logs an error.
    """
    listener = socket.create_server((host, port), backlog=_BACKLOG)
    address = f"http://{host}:{listener.getsockname()[1]}/v1"
    config = uvicorn.Config(
        create_sandbox(keep_requests=keep_requests),
        log_config=None,
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=_DRAIN_TIMEOUT_S,
    )
    server = ThreadServer(config)
    thread = threading.Thread(
        target=server.run, args=([listener],), name="switchcraft-sandbox", daemon=True
    )
    thread.start()
    try:
        if not server.ready.wait(START_TIMEOUT_S):
            raise SwitchcraftError(f"The sandbox did not start within {START_TIMEOUT_S:.0f} s.")
        yield address
    finally:
        server.stop()
        thread.join(STOP_TIMEOUT_S)
