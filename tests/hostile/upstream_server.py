"""Raw TCP server that answers each request by the behaviour that one of its headers names.

A behaviour yields bytes, pauses in seconds, and how the connection ends. Endless behaviours
continue until the gateway disconnects. A limit on time and bytes protects the machine if it does
not; the tests assert that the limit is never reached.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import Any

BEHAVIOUR_HEADER = "x-behaviour"
"""Header with the name of a behaviour."""

UPSTREAM_KEY = "planted-upstream-key-Ge54LkHj93Qs"
"""The gateway's key for this upstream. No client may see it."""

MAX_PLAY_S = 12.0
MAX_PLAY_BYTES = 1024 * 1024 * 1024
WRITE_BYTES = 256 * 1024
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
RESPONSES_USAGE = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}


RESET = None
"""The step that resets the connection."""

Step = bytes | float | None
"""Bytes to send, seconds to wait, or `RESET`."""


class Surface(StrEnum):
    """An endpoint of the gateway, with or without streaming."""

    CHAT = "chat"
    CHAT_STREAM = "chat-stream"
    RESPONSES = "responses"
    RESPONSES_STREAM = "responses-stream"
    PASSED_GET = "passed-get"
    PASSED_POST = "passed-post"


class Expected(Enum):
    """How the client's request must end."""

    GOOD = auto()
    """With status 200 and the whole answer."""
    FAILS = auto()
    """With status 502, 503 or 504, or with an error event or a cut if the answer had begun."""
    ANY = auto()
    """With any well-formed answer except a 500, complete or cut."""


@dataclass(frozen=True)
class UpstreamRequest:
    """A request as the upstream received it."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = b""

    @property
    def nonce(self) -> str:
        """Return the request's unique id. A correct answer repeats it."""
        return self.headers.get("x-request-id", "none")

    @property
    def is_response(self) -> bool:
        """Return whether the request is for the Responses API."""
        return self.path.startswith("/v1/responses")

    @property
    def is_stream(self) -> bool:
        """Return whether the request asks for a stream."""
        return b'"stream":true' in self.body

    @property
    def kind(self) -> bytes:
        """Return the content type of a correct answer."""
        return b"text/event-stream" if self.is_stream else b"application/json"

    @property
    def payload(self) -> bytes:
        """Return the body of a correct answer."""
        if self.is_stream:
            return b"".join(event(value) for value in self.events()) + self.done
        return dumps(self.answer())

    @property
    def done(self) -> bytes:
        """Return the end of a correct stream."""
        return b"" if self.is_response else b"data: [DONE]\n\n"

    def answer(self, **changes: object) -> dict[str, Any]:
        """Return a correct answer as a JSON object, with some fields replaced."""
        good: dict[str, Any]
        if self.path.startswith("/v1/chat"):
            message = {"role": "assistant", "content": self.nonce}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            good = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1}
            good |= {"model": "m", "choices": [choice], "usage": USAGE}
        elif self.is_response:
            part = {"type": "output_text", "text": self.nonce}
            item = {"type": "message", "role": "assistant", "content": [part]}
            good = self._response() | {"output": [item], "usage": RESPONSES_USAGE}
        elif self.path.startswith("/v1/embeddings"):
            vector: dict[str, Any] = {"object": "embedding", "index": 0, "embedding": [0.5]}
            usage = {"prompt_tokens": 1, "total_tokens": 1}
            good = {"object": "list", "model": self.nonce, "data": [vector], "usage": usage}
        else:
            good = {"object": "file", "id": self.nonce, "bytes": 1}
        return good | changes

    def events(self) -> list[dict[str, Any]]:
        """Return a correct stream's events as JSON objects."""
        if not self.is_response:
            deltas: list[dict[str, Any]] = [{"role": "assistant"}, {"content": self.nonce}]
            last = self.chunk({}) | {"choices": [], "usage": USAGE}
            return [*map(self.chunk, deltas), self.chunk({}, "stop"), last]
        created = {"type": "response.created", "sequence_number": 0, "response": self._response()}
        last = {"type": "response.completed", "sequence_number": 2, "response": self.answer()}
        return [created, self.text_event(self.nonce), last]

    def text_event(self, text: object, number: object = 1) -> dict[str, Any]:
        """Return an event that carries text."""
        if not self.is_response:
            return self.chunk({"content": text})
        kind = "response.output_text.delta"
        return {"type": kind, "sequence_number": number, "output_index": 0, "delta": text}

    def chunk(self, delta: object, reason: str | None = None) -> dict[str, Any]:
        """Return a chunk of a streamed chat completion."""
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        return chunk | {"choices": [choice]}

    def _response(self) -> dict[str, Any]:
        return {"id": "resp_1", "object": "response", "status": "completed", "model": "m"}


Script = Callable[[UpstreamRequest], Iterable[Step]]

ANYWHERE = (Surface.CHAT, Surface.CHAT_STREAM, Surface.PASSED_GET)


@dataclass(frozen=True)
class Behaviour:
    """Something that a malicious or broken upstream does."""

    name: str
    script: Script
    expected: Expected = Expected.ANY
    surfaces: Sequence[Surface] = ANYWHERE
    body_bytes: int = 0
    """How much to enlarge the request's body, for upstreams that do not read it."""
    is_early: bool = False
    """Whether to answer without reading the request's body."""


def dumps(value: object) -> bytes:
    """Return JSON; infinities and lone surrogates are written as Python writes them."""
    return json.dumps(value, separators=(",", ":")).encode()


def event(value: object, end: bytes = b"\n") -> bytes:
    """Return a server-sent event."""
    return b"data: " + dumps(value) + end * 2


class MaliciousUpstream:
    """Server of the behaviours. Paths below `/control/` report its state."""

    def __init__(self, behaviours: Mapping[str, Behaviour]) -> None:
        self._behaviours = behaviours
        self._idle: set[asyncio.StreamWriter] = set()
        self._playing = 0
        self._capped: list[str] = []
        self._requests = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it ends."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while request := await self._read_request(reader, writer):
                if request.path.startswith("/control/"):
                    await self._control(request, writer)
                    continue
                self._playing += 1
                try:
                    has_ended = await self._play(request, reader, writer)
                finally:
                    self._playing -= 1
                if has_ended:
                    break
        writer.close()

    async def _read_request(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> UpstreamRequest | None:
        self._idle.add(writer)
        try:
            lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        finally:
            self._idle.discard(writer)
        method, path, _ = lines[0].split(" ", 2)
        pairs = (line.partition(":") for line in lines[1:-2])
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        behaviour = self._behaviours.get(headers.get(BEHAVIOUR_HEADER, ""))
        body = b""
        if not (behaviour and behaviour.is_early):
            body = await reader.readexactly(int(headers.get("content-length", 0)))
        if not path.startswith("/control/"):
            self._requests += 1
        return UpstreamRequest(method, path, headers, body)

    async def _play(
        self, request: UpstreamRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer by the named behaviour; return whether the connection has ended."""
        name = request.headers.get(BEHAVIOUR_HEADER, "")
        behaviour = self._behaviours.get(name)
        steps = behaviour.script(request) if behaviour else [_good(request)]
        began_s, sent_bytes = time.monotonic(), 0
        if writer.transport.is_closing() or reader.at_eof():
            return True
        for step in steps:
            match step:
                case None:
                    _reset(writer)
                    return True
                case float():
                    await _pause(step, reader, writer)
                case _:
                    for start in range(0, len(step), WRITE_BYTES):
                        writer.write(step[start : start + WRITE_BYTES])
                        await writer.drain()
                    sent_bytes += len(step)
            if writer.transport.is_closing() or reader.at_eof():
                return True
            if time.monotonic() - began_s > MAX_PLAY_S or sent_bytes > MAX_PLAY_BYTES:
                self._capped.append(name)
                return True
        return bool(behaviour and behaviour.is_early)

    async def _control(self, request: UpstreamRequest, writer: asyncio.StreamWriter) -> None:
        if request.path == "/control/drop":
            for other in self._idle:
                other.close()
        state = {
            "playing": self._playing,
            "capped": self._capped,
            "requests": self._requests,
        }
        body = dumps(state)
        if request.path == "/control/forget":
            self._capped.clear()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
        writer.write(b"content-length: %d\r\n\r\n%b" % (len(body), body))
        await writer.drain()


async def _pause(
    pause_s: float, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Wait, but stop early if the gateway disconnects."""
    end_s = time.monotonic() + pause_s
    while (left_s := end_s - time.monotonic()) > 0:
        await asyncio.sleep(min(left_s, 0.02))
        if writer.transport.is_closing() or reader.at_eof():
            return
    await asyncio.sleep(0)


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close by RST."""
    connection: socket.socket = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def _good(request: UpstreamRequest) -> bytes:
    lines = b"content-type: %b\r\ncontent-length: %d\r\n\r\n"
    return b"HTTP/1.1 200 OK\r\n" + lines % (request.kind, len(request.payload)) + request.payload
