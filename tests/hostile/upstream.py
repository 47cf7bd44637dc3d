"""Table of a malicious upstream's answers, and the command that serves it.

`python -m tests.hostile.upstream` listens on a free port and writes its number. The upstream is a
separate process, so that it does not wait for the tests' interpreter lock. How single bytes of HTTP
are read is the claim of `tests/fuzz/upstream_http.py`, and which values fields may have that of
`test_no_status_500.py`: here is one answer of each kind that may harm a process.
"""

# ruff: noqa: ARG005 - many answers do not depend on the request

from __future__ import annotations

import asyncio
import gzip
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from tests.hostile.upstream_server import (
    ANYWHERE,
    RESET,
    Behaviour,
    Expected,
    MaliciousUpstream,
    Script,
    Step,
    Surface,
    UpstreamRequest,
    dumps,
    event,
)

MB = 1024 * 1024
ZEROS = bytes(MB)
FILLER = b"x" * (256 * 1024)

GOOD, FAILS, ANY = Expected.GOOD, Expected.FAILS, Expected.ANY

CHAT, STREAM = (Surface.CHAT,), (Surface.CHAT_STREAM,)
STREAMS = (Surface.CHAT_STREAM, Surface.RESPONSES_STREAM)
BODIES = (Surface.CHAT, Surface.RESPONSES, Surface.PASSED_GET)
UPLOADS = (Surface.CHAT, Surface.PASSED_POST)


def group(
    expected: Expected, scripts: Mapping[str, Script], surfaces: Sequence[Surface] = ANYWHERE
) -> list[Behaviour]:
    """Return behaviours with the same end on the same surfaces."""
    return [Behaviour(name, script, expected, surfaces) for name, script in scripts.items()]


def head(*lines: bytes, status: bytes = b"200 OK") -> bytes:
    """Return a status line and headers."""
    return b"\r\n".join((b"HTTP/1.1 " + status, *lines, b"", b""))


def full_answer(
    request: UpstreamRequest,
    body: bytes | None = None,
    *lines: bytes,
    status: bytes = b"200 OK",
    kind: bytes | None = None,
) -> bytes:
    """Return a response with the length of its body; by default, a correct one."""
    body = request.payload if body is None else body
    kind = b"content-type: " + (kind or request.kind)
    return head(kind, b"content-length: %d" % len(body), *lines, status=status) + body


def with_length(request: UpstreamRequest, *lengths: bytes) -> bytes:
    """Return a correct body with these content-length headers."""
    lines = [b"content-length: " + length for length in lengths]
    return head(b"content-type: " + request.kind, *lines) + request.payload


def chunk(data: bytes, extension: bytes = b"") -> bytes:
    """Return a chunk of a body (RFC 9112, section 7.1)."""
    return b"%x%b\r\n%b\r\n" % (len(data), extension, data)


def chunked_head(request: UpstreamRequest, *lines: bytes) -> bytes:
    """Return the head of a response whose body comes in chunks."""
    kind = b"content-type: " + request.kind
    return head(kind, b"transfer-encoding: chunked", *lines)


def chunked_answer(request: UpstreamRequest, end: bytes = b"0\r\n\r\n") -> bytes:
    """Return a correct response in one chunk."""
    return chunked_head(request) + chunk(request.payload) + end


def with_headers(*lines: bytes, status: bytes = b"200 OK") -> Script:
    """Return a script for a correct response with extra headers."""
    return lambda r: [full_answer(r, None, *lines, status=status)]


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

    One compressed block is repeated, and the checksum of 1 GB is wrong, because computing them
    takes seconds.
    """
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = packer.compress(ZEROS) + packer.flush(zlib.Z_FULL_FLUSH)
    end = bytes(4) + (size_mb * MB).to_bytes(4, "little")
    return b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + block * size_mb + packer.flush() + end


@lru_cache(maxsize=16)
def json_array(item: bytes, size_mb: float) -> bytes:
    """Return a JSON array of about `size_mb`."""
    return b"[" + (item + b",") * int(size_mb * MB / (len(item) + 1)) + item + b"]"


def with_extra_member(request: UpstreamRequest, member: bytes) -> bytes:
    """Return a correct JSON body with one more member, already encoded, at its start."""
    return b"{" + member + b"," + dumps(request.answer())[1:]


def stream_with(request: UpstreamRequest, *events: bytes) -> bytes:
    """Return a correct stream with extra events after its first one."""
    first, *rest = request.events()
    return full_answer(request, b"".join((event(first), *events, *map(event, rest), request.done)))


def stream_of(*events: bytes) -> Script:
    """Return a script for a correct stream with extra events after its first one."""
    return lambda r: [stream_with(r, *events)]


def text_events(*values: str) -> Script:
    """Return a script for a stream whose events carry these texts."""
    return lambda r: [stream_with(r, _encoded_text_events(r.path, values))]


@lru_cache(maxsize=8)
def _encoded_text_events(path: str, texts: Sequence[str]) -> bytes:
    """Return events that carry texts; cached, because encoding 10 MB takes 0.1 s."""
    request = UpstreamRequest("POST", path, {})
    return b"".join(event(request.text_event(text)) for text in texts)


def broken_stream(*events: bytes) -> Script:
    """Return a script for a stream whose connection is reset."""
    return lambda r: [
        chunked_head(r) + chunk(b"".join((event(r.events()[0]), *events))),
        0.02,
        RESET,
    ]


def endless_stream(block: bytes, pause_s: float = 0.0) -> Script:
    """Return a script for a correct first event, followed by `block` without end."""
    return lambda r: endless(chunked_head(r) + chunk(event(r.events()[0])), chunk(block), pause_s)


def sent_in_chunks(request: UpstreamRequest, body: bytes, size: int) -> Iterator[Step]:
    """Yield a response in chunks of `size` bytes, each in a separate packet."""
    yield chunked_head(request)
    for start in range(0, len(body), size):
        yield chunk(body[start : start + size])
        yield 0.0
    yield b"0\r\n\r\n"


def call(arguments: str) -> dict[str, Any]:
    """Return a tool call."""
    function = {"name": "get_weather", "arguments": arguments}
    return {"id": "call_1", "type": "function", "function": function}


def with_calls(request: UpstreamRequest, calls: list[dict[str, Any]]) -> bytes:
    """Return a response with these tool calls."""
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    return full_answer(request, dumps(request.answer(choices=[choice])))


def answer_of_8_mb(request: UpstreamRequest) -> Iterator[Step]:
    """Send a correct response of 8 MB without building it in memory."""
    start, end = b'{"a":"', b'",' + dumps(request.answer())[1:]
    length = b"content-length: %d" % (len(start) + 8 * MB + len(end))
    yield head(b"content-type: application/json", length) + start
    for _ in range(32):
        yield FILLER
    yield end


GZIP = b"content-encoding: gzip"
SMUGGLED = b'{"id":"smuggled"}'

HEADS = (
    *group(
        FAILS,
        {
            "endless-headers": lambda r: endless(b"HTTP/1.1 200 OK\r\n", b"a: b\r\n" * 500),
            "slow-headers": lambda r: endless(b"HTTP/1.1 200 OK\r\n", b"a: b\r\n", 0.05),
            "1xx-flood": lambda r: endless(b"", head(status=b"100 Continue") * 100),
            "silence-behind-head": lambda r: [chunked_head(r), 30.0],
        },
    ),
    *group(FAILS, {"silence": lambda r: [30.0]}, CHAT),
    *group(
        GOOD,
        {
            "headers-of-ours": with_headers(
                *(b"x-switchcraft-model: evil", b"x-switchcraft-decision-id: evil"),
                *(b"set-cookie: a=b", b"location: http://evil/", b"server: evil"),
                *(b"connection: x-request-id", b"www-authenticate: Basic", b"alt-svc: h3=evil"),
            ),
        },
    ),
    *group(ANY, {"headers-800": with_headers(*(b"x-ratelimit-%d: a" % i for i in range(800)))}),
)
"""What comes before the body."""

LENGTHS = (
    *group(
        GOOD,
        {
            "length-short-then-endless": lambda r: endless(full_answer(r), b"x" * 65536),
            "chunks-then-answer": lambda r: [chunked_answer(r) + full_answer(r, SMUGGLED)],
        },
    ),
    *group(
        FAILS,
        {
            "length-long-silence": lambda r: [with_length(r, b"99999"), 30.0],
            "chunk-extension-endless": lambda r: endless(chunked_head(r) + b"5;a=", b"x" * 65536),
        },
    ),
    *group(
        FAILS,
        {
            "chunks-then-silence": lambda r: [chunked_answer(r, end=b""), 30.0],
        },
        BODIES,
    ),
    *group(
        ANY,
        {
            "length-1-tb": lambda r: endless(with_length(r, b"1" * 13), b"x" * 65536),
            "chunks-of-one-byte-endless": lambda r: endless(chunked_head(r), chunk(b" ") * 10_000),
            "trailers-endless": lambda r: endless(
                chunked_answer(r, end=b"0\r\n"), b"a: b\r\n" * 10_000
            ),
        },
    ),
    *(
        Behaviour(name, script, expected, UPLOADS, body_bytes=size_mb * MB, is_early=True)
        for name, script, expected, size_mb in (
            ("early-answer", lambda r: [full_answer(r), 0.3], GOOD, 4),
            ("body-never-read", lambda r: [2.5], FAILS, 9),
        )
    ),
)
"""Where the body ends."""

ENCODINGS = (
    *group(
        ANY,
        {
            "gzip-bomb": lambda r: [full_answer(r, gzip_zeros(1024), GZIP)],
            "gzip-bomb-nested": lambda r: [
                full_answer(r, gzip.compress(gzip_zeros(1024)), b"content-encoding: gzip, gzip")
            ],
            "gzip-bomb-error": lambda r: [full_answer(r, gzip_zeros(1024), GZIP, status=b"400 X")],
            "gzip-endless-nothing": lambda r: endless(
                chunked_head(r, GZIP) + chunk(b"\x1f\x8b\x08\0" + bytes(6)),
                chunk(b"\0\0\0\xff\xff" * 10_000),
            ),
        },
    ),
)
"""Bodies with a content encoding."""

JSON = (
    *group(
        ANY,
        {
            "60-mb-of-objects": lambda r: [full_answer(r, json_array(b"{}", 60))],
            "60-mb-string": lambda r: [
                full_answer(r, with_extra_member(r, b'"a":"' + b"x" * (60 * MB) + b'"'))
            ],
            "60-mb-error": lambda r: [full_answer(r, json_array(b"{}", 60), status=b"400 X")],
            "80-mb": lambda r: sent_in_chunks(r, bytes(80 * MB), MB),
            "id-10-mb": lambda r: [full_answer(r, dumps(r.answer(id="x" * 10 * MB)))],
        },
        BODIES,
    ),
    *group(
        ANY,
        {
            "tool-calls-100-000": lambda r: [with_calls(r, [call("{}")] * 100_000)],
        },
        CHAT,
    ),
    *group(
        GOOD,
        {
            "8-mb": answer_of_8_mb,
        },
        BODIES,
    ),
)
"""Whole answers."""

SSE = (
    *group(
        GOOD,
        {
            "blank-lines": stream_of(b"\n" * MB),
            "event-10-mb": text_events("x" * 10 * MB),
            "events-1-mb": text_events(*["x" * (MB - 200)] * 5),
            "events-20-000": text_events(*["x"] * 20_000),
        },
        STREAMS,
    ),
    *group(
        FAILS,
        {
            "reset-in-long-event": broken_stream(b'data: {"choices":[' + b" " * 2 * MB),
            "stream-silence": lambda r: [chunked_head(r) + chunk(event(r.events()[0])), 30.0],
        },
        STREAMS,
    ),
    *group(
        ANY,
        {
            "event-10-mb-of-objects": stream_of(b"data: " + json_array(b"{}", 10) + b"\n\n"),
            "event-of-100-000-lines": stream_of(
                b"data: {\n" + b"data:\n" * 100_000 + b"data: }\n\n"
            ),
            "event-id-10-mb": lambda r: [
                stream_with(r, event(r.events()[0] | {"id": "x" * 10 * MB}))
            ],
            "error-10-mb": stream_of(b'data: {"error":{"message":"' + b"x" * 10 * MB + b'"}}\n\n'),
            "comments-endless-later": endless_stream(b": ping\n\n" * 10_000),
            "event-endless": endless_stream(b"x" * 65536),
            "events-endless": endless_stream(b'data: {"choices":[]}\n\n' * 1000),
        },
        STREAMS,
    ),
    *group(ANY, {"events-endless-slow": endless_stream(b'data: {"choices":[]}\n\n', 0.05)}, STREAM),
)
"""Streams."""


BEHAVIOURS = (*HEADS, *LENGTHS, *ENCODINGS, *JSON, *SSE)


async def main() -> None:
    """Serve on a free local port and write its number to standard output."""
    upstream = MaliciousUpstream({behaviour.name: behaviour for behaviour in BEHAVIOURS})
    server = await asyncio.start_server(
        upstream.serve, "127.0.0.1", 0, backlog=2048, limit=1024 * 1024
    )
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    # The parent process ends this one by closing its standard input.
    await asyncio.to_thread(sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(main())
