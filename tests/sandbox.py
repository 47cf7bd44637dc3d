"""The sandbox with deliberate faults, counts and kept requests, for tests and benchmarks.

A request may ask for faults in its own `x-sandbox` header. `PUT /sandbox/faults/{model}` sets the
faults of requests to a model without this header, `GET /sandbox/stats` shows the counts, and
`GET /sandbox/requests` the last requests. `python -m tests.sandbox PORT` serves it.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
import socket
import sys
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from router_service.apis.answer_errors import AnswerError, write_openai_error
from router_service.apis.registry import APIS
from router_service.sandbox.provider import HEADER, KEEP_ALIVE_S, create_sandbox
from tests.serving import WAIT_S, ThreadServer

KEPT_REQUESTS = 20
KEEP_ALIVE = b": keep-alive\n\n"
_DATA = b"data: "
_DONE = b"[DONE]\n\n"
_BROKEN = b'{"id":"chatcmpl-sandbox-'
_MARK = (HEADER.encode(), b"true")
_JSON = (b"content-type", b"application/json")

ENDINGS = ("completed", "cancelled", "failed", "cut")
"""How requests end: answered, left by the client, answered with an error, or broken on request."""

_ERRORS = {
    401: ("invalid_request_error", "invalid_api_key"),
    404: ("invalid_request_error", "model_not_found"),
    429: ("requests", "rate_limit_exceeded"),
}
"""OpenAI's error `type` and `code` for statuses that do not use the general ones."""


@dataclass(frozen=True)
class Faults:
    """The faults of one answer; without any, the sandbox answers immediately and completely."""

    delay_s: float = 0.0
    """Wait in seconds before the answer, whether it is good or has an error status."""
    chunk_delay_s: float = 0.0
    """Wait in seconds between two events of a stream."""
    status: int | None = None
    """Answer with an error of this status; 429 has `Retry-After: 1`."""
    retry_after_s: float | None = None
    """With `status`: send `Retry-After` (seconds, rounded up) and `retry-after-ms` (exact)."""
    hang: bool = False
    """Never answer."""
    cut_after: int | None = None
    """Break the connection after this many events, or in the middle of a body."""
    malformed: bool = False
    """Answer with a body that is not JSON, or with a stream that has a broken line."""
    error_after: int | None = None
    """End a stream with an error event after this many events; without a stream, answer with status
    200 and a JSON body that is an error."""
    hang_after: int | None = None
    """Stop forever after this many events, or in the middle of a body."""
    keep_alives: bool = False
    """Send a comment, `: keep-alive`, before each event; comments do not count as events."""
    multi_line: bool = False
    """Send the data of every second event on several lines, and every third event with CRLF."""

    @classmethod
    def parse(cls, text: str) -> Faults:
        """Parse `field=value` and `field` entries, separated by commas; raise ValueError."""
        values: dict[str, Any] = {}
        for entry in filter(None, (part.strip() for part in text.split(","))):
            name, separator, value = entry.partition("=")
            kind = cls.__annotations__.get(name)
            if kind is None:
                raise ValueError(f"{HEADER} has no field {name!r}")
            is_seconds = kind.startswith("float")
            values[name] = (float(value) if is_seconds else int(value)) if separator else True
        return cls(**values)


@dataclass
class _Counts:
    requests: int = 0
    endings: Counter[str] = field(default_factory=Counter)

    def to_json(self) -> dict[str, int]:
        """Return each count by its name; requests without an ending are in flight."""
        ended = {ending: self.endings[ending] for ending in ENDINGS}
        in_flight = self.requests - self.endings.total()
        return {"requests": self.requests, **ended, "in_flight": in_flight}


class _ClientLeftError(Exception):
    """The client closed its connection before its answer was complete."""


@dataclass
class _Whole:
    """What the sandbox answered: the status, the headers, and the parts of the body."""

    status: int = 200
    headers: Sequence[tuple[bytes, bytes]] = ()
    parts: list[bytes] = field(default_factory=list)

    @property
    def is_stream(self) -> bool:
        """Whether the parts are events."""
        return dict(self.headers)[b"content-type"].startswith(b"text/event-stream")


_UNROUTED: dict[str, dict[str, Any]] = {
    "/v1/completions": {"object": "text_completion", "choices": [{"index": 0, "text": "sandbox"}]},
    "/v1/embeddings": {"object": "list", "data": [{"index": 0, "embedding": [1.0]}]},
}
"""Answers of endpoints that the sandbox itself does not have, because no router decides about
them."""


class FaultySandbox:
    """ASGI app: the sandbox, with faults, counts and the last requests."""

    def __init__(self) -> None:
        self._app: ASGIApp = create_sandbox()
        self.total = _Counts()
        self._by_model: defaultdict[str, _Counts] = defaultdict(_Counts)
        self._kept: deque[dict[str, Any]] = deque(maxlen=KEPT_REQUESTS)
        self._faults: dict[str, Faults] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        path = scope.get("path", "")
        if path.startswith("/sandbox/"):
            connection = _Connection(receive, send)
            told = self._manage(path, await connection.read_body())
            await connection.send_whole(200, json.dumps(told).encode())
        elif scope["type"] == "http" and scope["method"] == "POST":
            await self._infer(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _manage(self, path: str, body: bytes) -> object:
        """Return the counts or the kept requests, or set the faults of a model."""
        match path.split("/", 3)[2:]:
            case ["stats"]:
                by_model = {model: counts.to_json() for model, counts in self._by_model.items()}
                return {**self.total.to_json(), "by_model": by_model}
            case ["faults", model]:
                self._faults[model] = Faults.parse(body.decode())
                return {}
            case _:
                return list(self._kept)

    async def _infer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, and count its ending in total and, if the model is known, by model."""
        connection = _Connection(receive, send)
        counts = [self.total]
        self.total.requests += 1
        ending = "failed"
        try:
            body = await connection.read_body()
            headers = [(k.decode("latin-1"), v.decode("latin-1")) for k, v in scope["headers"]]
            encoded = base64.b64encode(body).decode()
            self._kept.append({"path": scope["path"], "headers": headers, "body_base64": encoded})
            try:
                values = json.loads(body)
            except ValueError:
                values = {}
            model = values.get("model", "")
            if model:
                counts.append(self._by_model[model])
                counts[-1].requests += 1
            own = [value for name, value in headers if name == HEADER]
            faults = Faults.parse(",".join(own)) if own else self._faults.get(model, Faults())
            whole = await self._ask(scope, body)
            ending = await _Reply(connection, scope["path"], faults, whole).send()
        except _ClientLeftError:
            ending = "cancelled"
        except asyncio.CancelledError:
            ending = "cancelled"
            raise
        finally:
            for each in counts:
                each.endings[ending] += 1

    async def _ask(self, scope: Scope, body: bytes) -> _Whole:
        """Return the sandbox's whole answer."""
        if scope["path"] in _UNROUTED:
            answer = {**_UNROUTED[scope["path"]], "usage": {"prompt_tokens": 1, "total_tokens": 1}}
            return _Whole(200, [_JSON, _MARK], [json.dumps(answer).encode()])
        whole = _Whole()

        async def receive() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        async def keep(message: Message) -> None:
            if message["type"] == "http.response.start":
                whole.status, whole.headers = message["status"], message["headers"]
            elif message["body"]:
                whole.parts.append(message["body"])

        await self._app({**scope, "asgi": {"spec_version": "2.4"}}, receive, keep)
        return whole


class _Connection:
    """One request's connection to its client."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send

    async def read_body(self) -> bytes:
        """Return the whole body; raise _ClientLeftError."""
        parts: list[bytes] = []
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise _ClientLeftError
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        return b"".join(parts)

    async def wait(self, delay_s: float | None) -> None:
        """Wait, forever if the time is None; raise _ClientLeftError if the client leaves."""
        if delay_s == 0:
            return
        try:
            async with asyncio.timeout(delay_s):
                while (await self._receive())["type"] != "http.disconnect":
                    pass
        except TimeoutError:
            return
        raise _ClientLeftError

    async def send_whole(
        self, status: int, body: bytes, further: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        """Send a complete JSON answer."""
        await self.start(status, [_JSON, (b"content-length", b"%d" % len(body)), *further])
        await self.send_part(body, more=False)

    async def start(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Send the status and the headers; a body without a length is sent in chunks."""
        started = {"type": "http.response.start", "status": status, "headers": [_MARK, *headers]}
        await self._send(started)

    async def send_part(self, part: bytes, *, more: bool) -> None:
        """Send a part of the body."""
        await self._send({"type": "http.response.body", "body": part, "more_body": more})


@dataclass(frozen=True)
class _Reply:
    """The sandbox's answer and the faults with which it is sent."""

    connection: _Connection
    path: str
    faults: Faults
    whole: _Whole

    async def send(self) -> str:
        """Send the answer, and return how it ended; raise _ClientLeftError."""
        connection, whole = self.connection, self.whole
        if whole.status != 200:
            await connection.send_whole(whole.status, b"".join(whole.parts))
            return "failed"
        return await self._send_faulty()

    async def _send_faulty(self) -> str:
        """Send the answer to a valid request."""
        connection, faults, whole = self.connection, self.faults, self.whole
        await connection.wait(None if faults.hang else faults.delay_s)
        if faults.status is not None:
            return await self._send_status(faults.status)
        if faults.error_after is not None and not whole.is_stream:
            message = "The sandbox fails within an answer of status 200, as requested."
            await connection.send_whole(200, self._error(500, message))
            return "failed"
        if whole.is_stream:
            return await self._send_events()
        body = _BROKEN if faults.malformed else b"".join(whole.parts)
        if faults.cut_after is None and faults.hang_after is None:
            await connection.send_whole(200, body)
            return "completed"
        # Send half of the body, although the header announces its full length.
        await connection.start(200, [_JSON, (b"content-length", b"%d" % len(body))])
        await connection.send_part(body[: len(body) // 2], more=True)
        if faults.hang_after is not None:
            await connection.wait(None)
        return "cut"

    async def _send_status(self, status: int) -> str:
        usual = "server_error" if status >= 500 else "invalid_request_error"
        kind, code = _ERRORS.get(status, (usual, None))
        headers = [(b"retry-after", b"1")] if status == 429 else []
        wait_s = self.faults.retry_after_s
        if wait_s is not None:
            headers = [
                (b"retry-after", b"%d" % math.ceil(wait_s)),
                (b"retry-after-ms", b"%d" % round(wait_s * 1000)),
            ]
        message = f"The sandbox fails with status {status}, as requested."
        await self.connection.send_whole(status, self._error(status, message, kind, code), headers)
        return "failed"

    def _error(
        self,
        status: int,
        message: str,
        kind: str = "server_error",
        code: str | None = "server_error",
    ) -> bytes:
        """Return an error in the format of the path's API, or in OpenAI's."""
        api = APIS.below(self.path.removeprefix("/v1"))
        error = AnswerError(status, message, kind, code)
        return orjson.dumps(write_openai_error(error) if api is None else api.write_error(error))

    async def _send_events(self) -> str:
        """Send a stream, and return how it ended.

        To cut it, return without the last part; then the server closes the connection.
        """
        connection, faults, events = self.connection, self.faults, self.whole.parts
        if faults.malformed:
            events = [events[0], _DATA + _BROKEN + b"\n\n", events[-1]]
        elif faults.error_after is not None:
            body = self._error(529, "The sandbox fails in mid-stream, as requested.")
            last = _DATA + body + b"\n\n"
            api = APIS.below(self.path.removeprefix("/v1"))
            if api is not None:
                last = api.error_event(body, faults.error_after)
            events = [*events[: faults.error_after], last]
        else:
            events = events[: faults.hang_after if faults.cut_after is None else faults.cut_after]
        await connection.start(200, [(b"content-type", b"text/event-stream; charset=utf-8")])
        sent = list(_in_odd_forms(events) if faults.multi_line else events)
        if faults.keep_alives:
            sent = [part for each in sent for part in (KEEP_ALIVE, each)]
        for index, each in enumerate(sent):
            if index:
                await connection.wait(faults.chunk_delay_s)
            await connection.send_part(each, more=True)
        if faults.hang_after is not None:
            await connection.wait(None)
        if faults.cut_after is not None:
            return "cut"
        await connection.send_part(b"", more=False)
        return "completed" if faults.error_after is None else "failed"


def _in_odd_forms(events: Sequence[bytes]) -> Iterator[bytes]:
    """Yield every second event with its data on several lines, and every third with CRLF.

    Both forms are valid (WHATWG HTML, "Server-sent events").
    """
    for index, each in enumerate(events, start=1):
        head, mark, data = each.partition(_DATA)
        if index % 2 == 0 and data != _DONE:
            lines = json.dumps(json.loads(data), indent=2).encode().split(b"\n")
            each = head + b"\n".join(mark + line for line in lines) + b"\n\n"  # noqa: PLW2901
        yield each.replace(b"\n", b"\r\n") if index % 3 == 0 else each


@contextmanager
def run_in_thread(port: int = 0) -> Iterator[str]:
    """Serve a sandbox from a thread, and yield its base URL, `http://HOST:PORT/v1`.

    If a request asks for a broken connection, the logger `uvicorn.error` logs an error.
    """
    listener = socket.create_server(("127.0.0.1", port), backlog=2048)
    config = uvicorn.Config(
        FaultySandbox(),
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=1,
    )
    server = ThreadServer(config)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        assert server.ready.wait(WAIT_S), "the sandbox has not started"
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    finally:
        server.stop()
        thread.join(WAIT_S)


if __name__ == "__main__":
    uvicorn.run(
        FaultySandbox(),
        lifespan="off",
        port=int(sys.argv[1]),
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
