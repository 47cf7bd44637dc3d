"""Malicious upstream, which answers each request by the behaviour that one of its headers names.

A behaviour yields bytes and pauses in seconds. Endless ones continue until the gateway disconnects.
A limit on time and bytes protects the machine if it does not; the tests assert that the limit is
never reached.

How single bytes of HTTP are read is the claim of `tests/fuzz/upstream_http.py`, which values fields
may have that of `test_no_status_500.py`, and the limits of an answer are those of
`tests/router_service/upstream`: here is what may exhaust a process.
"""

# ruff: noqa: ARG005 - many answers do not depend on the request

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from router_service.apis.parts import Text, ToolUse
from tests import apis
from tests.providers.answers import Reply, Written, event
from tests.serving import wait_for

BEHAVIOUR_HEADER = "x-behaviour"
"""Header with the name of a behaviour."""

UPSTREAM_KEY = "planted-upstream-key-Ge54LkHj93Qs"
"""The gateway's key for this upstream. No client may see it."""

MB = 1024 * 1024
MAX_PLAY_S = 30.0
MAX_PLAY_BYTES = 1024 * MB
WRITE_BYTES = 256 * 1024
FILLER = b"x" * (256 * 1024)

Step = bytes | float
"""Bytes to send, or seconds to wait."""


@dataclass(frozen=True)
class UpstreamRequest:
    """A request as the upstream received it."""

    path: str
    headers: Mapping[str, str]
    body: bytes = b""

    @property
    def nonce(self) -> str:
        """Return the request's unique id. A correct answer repeats it."""
        return self.headers.get("x-request-id", "none")

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
            return b"".join(self.reply().events())
        return dumps(self.answer())

    def reply(self, *parts: Written) -> Reply:
        """Return a chat answer with these parts; without any, a correct one."""
        return Reply(apis.CHAT, "m", parts or (Text(self.nonce),), piece_characters=MB)

    def answer(self, **changes: object) -> dict[str, Any]:
        """Return a correct answer as a JSON object, with some fields replaced."""
        if self.path.startswith("/v1/chat"):
            return {**self.reply().whole(), **changes}
        return {"object": "file", "id": self.nonce, "bytes": 1, **changes}


Script = Callable[[UpstreamRequest], Iterable[Step]]


def dumps(value: object) -> bytes:
    """Return JSON; infinities and lone surrogates are written as Python writes them."""
    return json.dumps(value, separators=(",", ":")).encode()


def head(*lines: bytes, status: bytes = b"200 OK") -> bytes:
    """Return a status line and headers."""
    return b"\r\n".join((b"HTTP/1.1 " + status, *lines, b"", b""))


def full_answer(
    request: UpstreamRequest,
    body: bytes | None = None,
    *lines: bytes,
    status: bytes = b"200 OK",
) -> bytes:
    """Return a response with the length of its body; by default, a correct one."""
    body = request.payload if body is None else body
    kind = b"content-type: " + request.kind
    return head(kind, b"content-length: %d" % len(body), *lines, status=status) + body


def chunk(data: bytes) -> bytes:
    """Return a chunk of a body (RFC 9112, section 7.1)."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def chunked_head(request: UpstreamRequest, *lines: bytes) -> bytes:
    """Return the head of a response whose body comes in chunks."""
    return head(b"content-type: " + request.kind, b"transfer-encoding: chunked", *lines)


def endless(start: bytes, block: bytes, pause_s: float = 0.0) -> Iterator[Step]:
    """Yield `start` once, then `block` until the gateway disconnects."""
    yield start
    while True:
        yield block
        if pause_s:
            yield pause_s


@lru_cache(maxsize=2)
def gzip_zeros(size_mb: int) -> bytes:
    """Return `size_mb` of zeros, compressed (gzip, RFC 1952).

    One compressed block is repeated, and the checksum is wrong, because computing them takes
    seconds.
    """
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = packer.compress(bytes(MB)) + packer.flush(zlib.Z_FULL_FLUSH)
    end = bytes(4) + (size_mb * MB).to_bytes(4, "little")
    return b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + block * size_mb + packer.flush() + end


@lru_cache(maxsize=4)
def json_array(item: bytes, size_mb: float) -> bytes:
    """Return a JSON array of about `size_mb`."""
    return b"[" + (item + b",") * int(size_mb * MB / (len(item) + 1)) + item + b"]"


def stream_of(*events: bytes) -> Script:
    """Return a script for a correct stream with extra events after its first one."""

    def script(request: UpstreamRequest) -> list[Step]:
        first, *rest = request.reply().events()
        return [full_answer(request, b"".join((first, *events, *rest)))]

    return script


def text_event(size_bytes: int) -> bytes:
    """Return an event that carries a text of this size."""
    return event({"choices": [{"index": 0, "delta": {"content": "x" * size_bytes}}]})


def endless_stream(block: bytes, pause_s: float = 0.0) -> Script:
    """Return a script for a correct first event, followed by `block` without end."""
    return lambda r: endless(chunked_head(r) + chunk(r.reply().events()[0]), chunk(block), pause_s)


def in_chunks(request: UpstreamRequest, count: int) -> Iterator[Step]:
    """Answer with this many chunks of zeros, of a megabyte each."""
    yield chunked_head(request)
    for _ in range(count):
        yield chunk(bytes(MB))
    yield b"0\r\n\r\n"


def answer_of_8_mb(request: UpstreamRequest) -> Iterator[Step]:
    """Send a correct response of 8 MB without building it in memory."""
    start, end = b'{"a":"', b'",' + dumps(request.answer())[1:]
    length = b"content-length: %d" % (len(start) + 8 * MB + len(end))
    yield head(b"content-type: application/json", length) + start
    for _ in range(32):
        yield FILLER
    yield end


GZIP = b"content-encoding: gzip"

WHOLE: Mapping[str, Script] = {
    "endless-headers": lambda r: endless(b"HTTP/1.1 200 OK\r\n", b"a: b\r\n" * 500),
    "chunks-of-one-byte-endless": lambda r: endless(chunked_head(r), chunk(b" ") * 10_000),
    "length-1-tb": lambda r: endless(head(b"content-length: " + b"1" * 13), FILLER),
    "gzip-bomb": lambda r: [full_answer(r, gzip_zeros(1024), GZIP)],
    "gzip-bomb-error": lambda r: [full_answer(r, gzip_zeros(1024), GZIP, status=b"400 X")],
    "60-mb-of-objects": lambda r: [full_answer(r, json_array(b"{}", 60))],
    "60-mb-error": lambda r: [full_answer(r, json_array(b"{}", 60), status=b"400 X")],
    "80-mb": lambda r: in_chunks(r, 80),
    "id-10-mb": lambda r: [full_answer(r, dumps(r.answer(id="x" * 10 * MB)))],
    "tool-calls-100-000": lambda r: [
        full_answer(r, dumps(r.reply(*[ToolUse("call_1", "get_weather", "{}")] * 100_000).whole()))
    ],
}
"""Answers that are not streamed."""

STREAMED: Mapping[str, Script] = {
    "blank-lines": stream_of(b"\n" * MB),
    "event-of-objects": stream_of(b"data: " + json_array(b"{}", 10) + b"\n\n"),
    "event-of-100-000-lines": stream_of(b"data: {\n" + b"data:\n" * 100_000 + b"data: }\n\n"),
    "events-20-000": stream_of(text_event(1) * 20_000),
    "comments-endless": endless_stream(b": ping\n\n" * 10_000),
    "event-endless": endless_stream(b"x" * 65536),
}
"""Answers that are streamed."""

BEHAVIOURS: Mapping[str, Script] = {
    **WHOLE,
    **STREAMED,
    "8-mb": answer_of_8_mb,
    "silence": lambda r: [30.0],
    "event-10-mb": stream_of(text_event(10 * MB)),
    "events-endless": endless_stream(b'data: {"choices":[]}\n\n' * 1000),
    "events-endless-slow": endless_stream(b'data: {"choices":[]}\n\n', 0.05),
}


class MaliciousUpstream:
    """Server of `BEHAVIOURS` in a thread."""

    def __init__(self) -> None:
        self.port = 0
        self.playing = 0
        """Number of behaviours that are in progress."""
        self.requests = 0
        self.capped: list[str] = []
        """The behaviours that reached a limit of time or bytes."""
        self._idle: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()

    def wait_until_left(self) -> None:
        """Wait until no behaviour is in progress."""
        wait_for(lambda: not self.playing, "the gateway leaves its upstream")

    def drop_idle(self) -> None:
        """Close the idle connections, which the gateway would keep for 30 s."""
        self._loop.call_soon_threadsafe(lambda: [writer.close() for writer in self._idle])

    def run(self) -> None:
        """Serve until `stop`."""
        with contextlib.suppress(RuntimeError):  # the loop was stopped
            self._loop.run_until_complete(self._listen())

    def stop(self) -> None:
        """End the server from another thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)

    async def _listen(self) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=2048, limit=MB)
        self.port = server.sockets[0].getsockname()[1]
        await server.serve_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it ends."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            has_ended = False
            while not has_ended:
                request = await self._read_request(reader, writer)
                self.requests += 1
                self.playing += 1
                try:
                    has_ended = await self._play(request, reader, writer)
                finally:
                    self.playing -= 1
        writer.close()

    async def _read_request(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> UpstreamRequest:
        self._idle.add(writer)
        try:
            lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        finally:
            self._idle.discard(writer)
        pairs = (line.partition(":") for line in lines[1:-2])
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        return UpstreamRequest(lines[0].split(" ")[1], headers, body)

    async def _play(
        self, request: UpstreamRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer by the named behaviour; return whether the connection has ended."""

        def has_ended() -> bool:
            return writer.transport.is_closing() or reader.at_eof()

        name = request.headers.get(BEHAVIOUR_HEADER, "")
        steps = BEHAVIOURS.get(name, lambda r: [full_answer(r)])(request)
        began_s, sent_bytes = time.monotonic(), 0
        for step in steps:
            if isinstance(step, float):
                end_s = time.monotonic() + step
                while time.monotonic() < end_s and not has_ended():  # noqa: ASYNC110 - it has no event
                    await asyncio.sleep(0.02)
            else:
                for start in range(0, len(step), WRITE_BYTES):
                    writer.write(step[start : start + WRITE_BYTES])
                    await writer.drain()
                sent_bytes += len(step)
            if has_ended():
                return True
            if time.monotonic() - began_s > MAX_PLAY_S or sent_bytes > MAX_PLAY_BYTES:
                self.capped.append(name)
                return True
        return False


@contextmanager
def running_upstream() -> Iterator[MaliciousUpstream]:
    """Serve on a free local port until the block ends."""
    upstream = MaliciousUpstream()
    thread = threading.Thread(target=upstream.run, daemon=True)
    thread.start()
    wait_for(lambda: upstream.port, "the upstream listens")
    yield upstream
    upstream.stop()
    thread.join()
