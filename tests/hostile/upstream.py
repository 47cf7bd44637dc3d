"""Table of a malicious upstream's answers, and the command that serves it.

`python -m tests.hostile.upstream` listens on a free port and writes its number. The upstream is a
separate process so that its work does not disturb the measurements.
"""

# ruff: noqa: ARG005 - many answers do not depend on the request

from __future__ import annotations

import asyncio
import gzip
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any

from tests import attacks
from tests.attacks import OUTSIDE_JSON, REPEATED_KEYS, VALUES, WAITS
from tests.hostile.upstream_server import (
    ANYWHERE,
    Behaviour,
    Close,
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
FIN, RST, HALF = Close.FIN, Close.RST, Close.HALF

CHAT, STREAM = (Surface.CHAT,), (Surface.CHAT_STREAM,)
CHATS = CHAT + STREAM
WHOLE = (Surface.CHAT, Surface.RESPONSES, Surface.EMBEDDINGS, Surface.PASSED_POST)
STREAMS = (Surface.CHAT_STREAM, Surface.RESPONSES_STREAM)
BODIES = (Surface.CHAT, Surface.RESPONSES, Surface.PASSED_GET)
EVERYWHERE = tuple(Surface)

ODD_VALUES = (*OUTSIDE_JSON.values(), *REPEATED_KEYS.values())


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


def _invalid_length(length: bytes, request: UpstreamRequest) -> list[Step]:
    return [with_length(request, length), 0.02, FIN]


def chunk(data: bytes, extension: bytes = b"") -> bytes:
    """Return a chunk of a body (RFC 9112, section 7.1)."""
    return b"%x%b\r\n%b\r\n" % (len(data), extension, data)


def chunked_head(request: UpstreamRequest, *lines: bytes, coding: bytes = b"chunked") -> bytes:
    """Return the head of a response whose body comes in chunks."""
    kind = b"content-type: " + request.kind
    return head(kind, b"transfer-encoding: " + coding, *lines)


def chunked_answer(request: UpstreamRequest, *lines: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    """Return a correct response in one chunk."""
    return chunked_head(request, *lines) + chunk(request.payload) + end


def wrong_chunk_size(size: bytes) -> Script:
    """Return a script for a response whose chunk has the wrong size."""
    return lambda r: [
        chunked_head(r) + size + b"\r\n" + r.payload + b"\r\n0\r\n\r\n",
        0.05,
        FIN,
    ]


def with_status(status: bytes, *steps: Step) -> Script:
    """Return a script for a correct body with another status, followed by `steps`."""
    return lambda r: [full_answer(r, status=status), *steps]


def with_headers(*lines: bytes, status: bytes = b"200 OK") -> Script:
    """Return a script for a correct response with extra headers."""
    return lambda r: [full_answer(r, None, *lines, status=status)]


def header_values(name: bytes, *values: bytes, status: bytes = b"200 OK") -> Script:
    """Return a script that uses another value for a header in each variant."""
    return lambda r: [
        full_answer(r, None, name + b": " + values[r.variant % len(values)], status=status)
    ]


def endless(start: bytes, block: bytes, pause_s: float = 0.0) -> Iterator[Step]:
    """Yield `start` once, then `block` until the gateway disconnects."""
    yield start
    while True:
        yield block
        if pause_s:
            yield pause_s


def byte_by_byte(data: bytes, pause_s: float = 0.0) -> Iterator[Step]:
    """Yield each byte as a separate packet."""
    for index in range(len(data)):
        yield data[index : index + 1]
        yield pause_s


def split(data: bytes, size: int) -> list[bytes]:
    """Return the data in parts of at most `size` bytes."""
    return [data[start : start + size] for start in range(0, len(data), size)]


@lru_cache(maxsize=8)
def gzip_zeros(layers: int, size_mb: int) -> bytes:
    """Return `size_mb` of zeros, compressed `layers` times (gzip, RFC 1952).

    The checksum of 1 GB is wrong, because computing it takes half a second.
    """
    checksum = 0
    for _ in range(size_mb % 1024):
        checksum = zlib.crc32(ZEROS, checksum)
    end = checksum.to_bytes(4, "little") + (size_mb * MB).to_bytes(4, "little")
    data = b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + _raw_deflate_zeros(size_mb) + end
    for _ in range(layers - 1):
        data = gzip.compress(data)
    return data


@lru_cache(maxsize=4)
def deflate_zeros(size_mb: int) -> bytes:
    """Return `size_mb` of zeros in zlib's format (RFC 1950), which HTTP calls deflate."""
    checksum = 1
    for _ in range(size_mb % 1024):
        checksum = zlib.adler32(ZEROS, checksum)
    return b"\x78\x9c" + _raw_deflate_zeros(size_mb) + checksum.to_bytes(4, "big")


def _raw_deflate_zeros(size_mb: int) -> bytes:
    """Return one compressed block, repeated, because compressing 1 GB takes seconds."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = packer.compress(ZEROS) + packer.flush(zlib.Z_FULL_FLUSH)
    return block * size_mb + packer.flush()


def encoded_answer(request: UpstreamRequest, body: bytes, *encodings: bytes) -> bytes:
    """Return a response with these content encodings."""
    return full_answer(request, body, *(b"content-encoding: " + encoding for encoding in encodings))


@lru_cache(maxsize=16)
def json_array(item: bytes, size_mb: float) -> bytes:
    """Return a JSON array of about `size_mb`."""
    return b"[" + (item + b",") * int(size_mb * MB / (len(item) + 1)) + item + b"]"


def nested_json(depth: int, opening: bytes, closing: bytes) -> bytes:
    """Return JSON with `depth` levels."""
    return opening * depth + b"0" + closing * depth


def with_extra_member(request: UpstreamRequest, member: bytes) -> bytes:
    """Return a correct JSON body with one more member, already encoded, at its start."""
    return b"{" + member + b"," + dumps(request.answer())[1:]


def extra_member(
    text: bytes, expected: Expected = ANY, surfaces: Sequence[Surface] = BODIES
) -> Any:  # noqa: ANN401
    """Return the arguments of a behaviour that adds a member to a correct JSON body."""
    return (lambda r: [full_answer(r, with_extra_member(r, text))]), expected, surfaces


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


def truncated_stream(*events: bytes, close: Close = FIN) -> Script:
    """Return a script for a stream that ends too early."""
    return lambda r: [
        chunked_head(r) + chunk(b"".join((event(r.events()[0]), *events))),
        0.02,
        close,
    ]


def with_line_end(end: bytes) -> Script:
    """Return a script for a correct stream with another line ending."""
    return lambda r: [full_answer(r, r.payload.replace(b"\n", end))]


def endless_stream(block: bytes, pause_s: float = 0.0) -> Script:
    """Return a script for a correct first event, followed by `block` without end."""
    return lambda r: endless(chunked_head(r) + chunk(event(r.events()[0])), chunk(block), pause_s)


def sent_in_chunks(
    request: UpstreamRequest, body: bytes, size: int, pause_s: float = 0.0
) -> Iterator[Step]:
    """Yield a response in chunks of `size` bytes, each in a separate packet."""
    yield chunked_head(request)
    for part in split(body, size):
        yield chunk(part)
        yield pause_s
    yield b"0\r\n\r\n"


def with_value_at(tree: Any, path: Sequence[str | int], value: object) -> Any:  # noqa: ANN401
    """Return a copy of a JSON tree with a value at a path; creates missing parents."""
    if not path:
        return value
    step, *rest = path
    if isinstance(step, int):
        items = list(tree) if isinstance(tree, list) and tree else [{}]
        items[step] = with_value_at(items[step], rest, value)
        return items
    members = dict(tree) if isinstance(tree, dict) else {}
    return members | {step: with_value_at(members.get(step), rest, value)}


def wrong_type(name: str, *path: str | int, surfaces: Sequence[Surface] = CHATS) -> Behaviour:
    """Return the behaviour that puts values of all types at a path of its JSON."""

    def script(request: UpstreamRequest) -> Iterator[Step]:
        value = VALUES[request.variant % len(VALUES)]
        if request.is_stream:
            good = request.events()
            bad = [with_value_at(each, path, value) for each in good]
            yield full_answer(
                request, b"".join(map(event, (good[0], *bad, *good[1:]))) + request.done
            )
        else:
            yield full_answer(request, dumps(with_value_at(request.answer(), path, value)))

    return Behaviour(f"wrong-{name}", script, ANY, surfaces, variants=len(VALUES))


def echo_key(text: Callable[[str], str], status: bytes = b"200 OK") -> Script:
    """Return a script whose response contains `text(key)`, where `key` is the gateway's."""

    def script(request: UpstreamRequest) -> Iterator[Step]:
        shown = text(request.sent_key)
        if not status.startswith(b"2"):
            error = {"message": f"bad key {shown}", "type": "e", "param": shown, "code": "x"}
            yield full_answer(
                request, dumps({"error": error}), status=status, kind=b"application/json"
            )
        elif request.is_stream:
            yield stream_with(request, event(request.text_event(f"key: {shown}.")))
        else:
            yield full_answer(request, dumps(request.answer(note=f"key: {shown}.")))

    return script


def echo_key_in_header(name: bytes) -> Script:
    """Return a script whose response contains the gateway's key in a header."""
    return lambda r: [full_answer(r, None, name + b": " + r.sent_key.encode())]


def echo_key_escaped(request: UpstreamRequest) -> Iterator[Step]:
    """Send the key with every character as a JSON escape sequence."""
    key = "".join(f"\\u{ord(letter):04x}" for letter in request.sent_key).encode()
    if request.is_stream:
        yield stream_with(request, b'data: {"choices":[{"delta":{"content":"' + key + b'"}}]}\n\n')
    else:
        yield full_answer(request, with_extra_member(request, b'"note":"' + key + b'"'))


def echo_key_over_chunks(request: UpstreamRequest) -> Iterator[Step]:
    """Send the key so that chunks and packets end within it."""
    body = (
        stream_with(request, event(request.text_event(request.sent_key))).partition(b"\r\n\r\n")[2]
        if request.is_stream
        else dumps(request.answer(note=request.sent_key))
    )
    yield from sent_in_chunks(request, body, 7, 0.001)


def echo_key_over_events(request: UpstreamRequest) -> Iterator[Step]:
    """Send the key one character per event."""
    yield stream_with(request, *(event(request.text_event(letter)) for letter in request.sent_key))


def echo_key_compressed(request: UpstreamRequest) -> Iterator[Step]:
    """Send the key in a compressed body."""
    yield encoded_answer(
        request, gzip.compress(dumps(request.answer(note=request.sent_key))), b"gzip"
    )


def call(arguments: str) -> dict[str, Any]:
    """Return a tool call."""
    function = {"name": "get_weather", "arguments": arguments}
    return {"id": "call_1", "type": "function", "function": function}


def with_calls(request: UpstreamRequest, calls: list[dict[str, Any]]) -> bytes:
    """Return a response with these tool calls."""
    path = ("choices", 0, "message", "tool_calls")
    return full_answer(request, dumps(with_value_at(request.answer(), path, calls)))


def answer_of_8_mb(request: UpstreamRequest) -> Iterator[Step]:
    """Send a correct response of 8 MB without building it in memory."""
    start, end = b'{"a":"', b'",' + dumps(request.answer())[1:]
    length = b"content-length: %d" % (len(start) + 8 * MB + len(end))
    yield head(b"content-type: application/json", length) + start
    for _ in range(32):
        yield FILLER
    yield end


def truncated_after_number(request: UpstreamRequest) -> Iterator[Step]:
    """Reset a stream after an event whose sequence number has any type and size."""
    yield chunked_head(request) + chunk(event(request.events()[0]))
    yield chunk(event(request.text_event("a", VALUES[request.variant])))
    yield 0.01
    yield RST


HEADS = [
    Behaviour("no-http", lambda r: [b"HELLO THERE\r\n\r\n", 0.05], FAILS),
    Behaviour("http-0.9", lambda r: [b"<html>hello</html>", FIN], FAILS),
    Behaviour("http-2-settings", lambda r: [b"\0\0\x12\4\0\0\0\0\0" + bytes(18), 0.05], FAILS),
    Behaviour("tls-alert", lambda r: [b"\x15\3\1\0\2\2\x28", FIN], FAILS),
    Behaviour("smtp-banner", lambda r: [b"220 mail ESMTP\r\n" + full_answer(r)], FAILS),
    Behaviour("binary", lambda r: [bytes(range(256)) * 64, FIN], FAILS),
    Behaviour("status-99", with_status(b"99 X", FIN), FAILS),
    Behaviour("status-000", with_status(b"000 X", FIN), FAILS),
    Behaviour("status-1000", with_status(b"1000 X", FIN), FAILS),
    Behaviour("status-999", with_status(b"999 X"), FAILS),
    Behaviour("status-600", with_status(b"600 X"), FAILS),
    Behaviour("status-text", with_status(b"abc X", FIN), FAILS),
    Behaviour("status-negative", with_status(b"-200 X", FIN), FAILS),
    Behaviour("status-missing", with_status(b"", FIN), FAILS),
    Behaviour("status-huge", with_status(b"2" * 5000, FIN), FAILS),
    Behaviour("reason-8-bit", with_status(b"200 \xff\xfe"), ANY),
    Behaviour("version-9.9", lambda r: [full_answer(r).replace(b"/1.1", b"/9.9", 1), FIN], FAILS),
    Behaviour(
        "http-1.0-until-close",
        lambda r: [
            b"HTTP/1.0 200 OK\r\ncontent-type: " + r.kind + b"\r\n\r\n" + r.payload,
            FIN,
        ],
        GOOD,
    ),
    Behaviour("lf-only", lambda r: [full_answer(r).replace(b"\r\n", b"\n"), 0.05, FIN], ANY),
    Behaviour("endless-status-line", lambda r: endless(b"HTTP/1.1 200 ", b"x" * 4096), FAILS),
    Behaviour(
        "endless-header-value",
        lambda r: endless(b"HTTP/1.1 200 OK\r\nx-a: ", b"x" * 4096),
        FAILS,
    ),
    Behaviour("endless-header-name", lambda r: endless(b"HTTP/1.1 200 OK\r\n", b"x" * 4096), FAILS),
    Behaviour(
        "endless-headers", lambda r: endless(b"HTTP/1.1 200 OK\r\n", b"a: b\r\n" * 500), FAILS
    ),
    Behaviour(
        "endless-slow-headers", lambda r: endless(b"HTTP/1.1 200 OK\r\n", b"a: b\r\n", 0.05), FAILS
    ),
    Behaviour("endless-empty-lines", lambda r: endless(b"", b"\r\n" * 2000), FAILS),
    Behaviour("header-without-colon", with_headers(b"nonsense"), FAILS),
    Behaviour("header-with-nul", with_headers(b"x-request-id: a\0b"), FAILS),
    Behaviour("header-with-space", with_headers(b"bad name: a"), FAILS),
    Behaviour("header-without-name", with_headers(b": a"), FAILS),
    Behaviour("header-folded", with_headers(b"x-a: b\r\n c"), ANY),
    Behaviour("header-with-bare-cr", with_headers(b"x-request-id: a\rset-cookie: b=c"), ANY),
    Behaviour("header-with-bare-lf", with_headers(b"x-request-id: a\nset-cookie: b=c"), ANY),
    Behaviour("header-8-bit", with_headers(b"x-request-id: \xff\xe9", b"x-ratelimit-a: \x80"), ANY),
    Behaviour("header-control", with_headers(b"x-request-id: a\x01\x7fb"), ANY),
    Behaviour("header-90-kb", with_headers(b"x-ratelimit-a: " + b"a" * 90_000), ANY),
    Behaviour("headers-800", with_headers(*(b"x-ratelimit-%d: a" % i for i in range(800))), ANY),
    Behaviour(
        "headers-of-ours",
        with_headers(
            *(b"x-switchcraft-model: evil", b"x-switchcraft-decision-id: evil"),
            *(b"set-cookie: a=b", b"location: http://evil/", b"server: evil"),
            *(b"connection: x-request-id", b"www-authenticate: Basic", b"alt-svc: h3=evil"),
        ),
        GOOD,
    ),
    Behaviour("kind-missing", lambda r: [head(b"content-length: 2") + b"{}"], ANY),
    Behaviour(
        "kinds",
        lambda r: [
            full_answer(
                r,
                kind=(
                    *(b"TEXT/EVENT-STREAM; charset=utf-16", b"text/html", b"application/json"),
                    *(b"text/event-streams", b"\xff\xff", b"a" * 5000, b";;;", b"multipart/x"),
                )[r.variant],
            )
        ],
        ANY,
        variants=8,
    ),
    Behaviour("kind-twice", with_headers(b"content-type: text/html"), ANY),
    Behaviour("1xx-flood", lambda r: endless(b"", head(status=b"100 Continue") * 100), FAILS),
    Behaviour(
        "1xx-endless-headers",
        lambda r: endless(b"HTTP/1.1 103 Early\r\n", b"link: <a>\r\n" * 100),
        FAILS,
    ),
    Behaviour("1xx-slow", lambda r: endless(b"", head(status=b"102 Processing"), 0.05), FAILS),
    Behaviour("100-then-good", lambda r: [head(status=b"100 Continue") + full_answer(r)], GOOD),
    Behaviour(
        "103-then-good",
        lambda r: [head(b"link: <a>", b"x-request-id: early", status=b"103 Early"), full_answer(r)],
        GOOD,
    ),
    Behaviour(
        "1xx-with-length",
        lambda r: [head(b"content-length: 5", status=b"103 Early") + b"hello" + full_answer(r)],
        FAILS,
    ),
    Behaviour(
        "101-upgrade",
        lambda r: [
            head(b"upgrade: x", b"connection: upgrade", status=b"101 Switching Protocols"),
            b"\x81\5hello",
            0.05,
        ],
        FAILS,
    ),
    Behaviour(
        "101-then-good",
        lambda r: [
            head(b"upgrade: h2c", b"connection: upgrade", status=b"101 Switching Protocols")
            + full_answer(r)
        ],
        FAILS,
    ),
    Behaviour(
        "200-with-upgrade",
        with_headers(b"upgrade: h2c", b"connection: upgrade"),
        ANY,
    ),
    Behaviour("204-with-body", with_status(b"204 No Content"), ANY),
    Behaviour("205-with-body", with_status(b"205 Reset"), ANY),
    Behaviour("304-with-body", with_status(b"304 Not Modified"), FAILS),
    Behaviour("206-partial", with_status(b"206 Partial"), ANY),
    Behaviour(
        "redirects",
        lambda r: [
            full_answer(
                r,
                b"",
                b"location: http://127.0.0.1:9/latest/meta-data/",
                status=b"%d Moved" % (300 + r.variant),
            )
        ],
        FAILS,
        variants=9,
    ),
    Behaviour(
        "statuses",
        lambda r: [full_answer(r, status=b"%d X" % (400 + r.variant))],
        ANY,
        variants=99,
        surfaces=CHAT,
    ),
    Behaviour("fin-at-once", lambda r: [FIN], FAILS),
    Behaviour("rst-at-once", lambda r: [RST], FAILS),
    Behaviour("half-close-at-once", lambda r: [HALF, 0.2], FAILS),
    Behaviour("fin-in-head", lambda r: [full_answer(r)[:30], 0.01, FIN], FAILS),
    Behaviour("rst-in-head", lambda r: [full_answer(r)[:30], 0.01, RST], FAILS),
    Behaviour("half-close-then-good", lambda r: [full_answer(r), HALF, 0.1], GOOD),
    Behaviour("head-byte-by-byte", lambda r: byte_by_byte(full_answer(r), 0.0), GOOD),
    Behaviour("silence", lambda r: [30.0], FAILS, CHAT),
    Behaviour("silence-in-head", lambda r: [full_answer(r)[:30], 30.0], FAILS, STREAM),
    Behaviour("silence-behind-head", lambda r: [chunked_head(r), 30.0], FAILS),
    Behaviour("slow-first-byte", lambda r: [0.3, full_answer(r)], GOOD),
]

ENDS = (b"\n", b"\r\n", b"\r", b"\r\n", b"\n", b"\r", b"\n", b"\r\n")

LENGTHS = [
    Behaviour(
        "length-short",
        lambda r: [full_answer(r) + b'{"id":"smuggled"}' + b"\0" * 1000],
        GOOD,
    ),
    Behaviour(
        "length-short-then-answer",
        lambda r: [full_answer(r) + full_answer(r, b'{"id":"smuggled"}')],
        GOOD,
    ),
    Behaviour(
        "length-short-many-answers",
        lambda r: [full_answer(r) + full_answer(r, b"smuggled") * 1000],
        GOOD,
    ),
    Behaviour(
        "length-short-then-endless",
        lambda r: endless(full_answer(r), b"x" * 65536),
        GOOD,
    ),
    Behaviour(
        "answer-while-idle",
        lambda r: [full_answer(r), 0.03, full_answer(r, b'{"id":"smuggled"}'), 0.05],
        GOOD,
    ),
    Behaviour("byte-while-idle", lambda r: [full_answer(r), 0.02, b"H", 0.05], GOOD),
    Behaviour(
        "1xx-while-idle", lambda r: [full_answer(r), 0.02, head(status=b"100 C"), 0.05], GOOD
    ),
    Behaviour(
        "408-while-idle",
        lambda r: [
            full_answer(r),
            0.02,
            full_answer(r, b"", b"connection: close", status=b"408 T"),
            FIN,
        ],
        GOOD,
    ),
    Behaviour("close-without-closing", with_headers(b"connection: close"), GOOD),
    Behaviour("fin-behind-keep-alive", lambda r: [full_answer(r), FIN], GOOD),
    Behaviour("rst-behind-keep-alive", lambda r: [full_answer(r), 0.02, RST], ANY),
    Behaviour(
        "rst-behind-answer", lambda r: [full_answer(r, None, b"connection: close"), 0.02, RST], GOOD
    ),
    Behaviour("keep-alive-lie", with_headers(b"keep-alive: timeout=999999999999, max=-1"), GOOD),
    Behaviour("length-long-fin", lambda r: [with_length(r, b"99999"), 0.02, FIN], FAILS),
    Behaviour("length-long-rst", lambda r: [with_length(r, b"99999"), 0.02, RST], FAILS),
    Behaviour("length-long-silence", lambda r: [with_length(r, b"99999"), 30.0], FAILS),
    *(
        Behaviour(f"length-{name}", partial(_invalid_length, value), FAILS)
        for name, value in attacks.LENGTHS.items()
    ),
    Behaviour("length-1-tb-trickle", lambda r: endless(with_length(r, b"1" * 13), b"x", 0.02), ANY),
    Behaviour(
        "length-1-tb", lambda r: endless(with_length(r, b"1" * 13), b"x" * 65536), ANY, BODIES
    ),
    Behaviour("length-empty", lambda r: [with_length(r, b""), 0.02, FIN], ANY),
    Behaviour(
        "length-digits-endless",
        lambda r: endless(b"HTTP/1.1 200 OK\r\ncontent-length: 0", b"0" * 4096),
        FAILS,
    ),
    Behaviour(
        "length-twice-equal", lambda r: [with_length(r, *[b"%d" % len(r.payload)] * 2), FIN], ANY
    ),
    Behaviour("length-twice-other", lambda r: [with_length(r, b"3", b"99"), 0.02, FIN], FAILS),
    Behaviour("length-0-with-body", lambda r: [with_length(r, b"0")], ANY),
    Behaviour(
        "length-and-chunked",
        lambda r: [chunked_head(r, b"content-length: 5") + chunk(r.payload) + b"0\r\n\r\n", FIN],
        ANY,
    ),
    Behaviour("coding-gzip", lambda r: [chunked_head(r, coding=b"gzip") + r.payload, FIN], ANY),
    Behaviour(
        "coding-unknown", lambda r: [chunked_head(r, coding=b"x, chunked") + b"5\r\n", FIN], ANY
    ),
    Behaviour(
        "coding-twice",
        lambda r: [chunked_head(r, b"transfer-encoding: chunked") + chunk(r.payload), FIN],
        ANY,
    ),
    Behaviour("coding-identity", lambda r: [chunked_head(r, coding=b"identity") + b"{}", FIN], ANY),
    Behaviour("chunk-size-2-to-64", wrong_chunk_size(b"ffffffffffffffff"), ANY),
    *(
        Behaviour(f"chunk-size-{name}", wrong_chunk_size(size), FAILS)
        for name, size in attacks.CHUNK_SIZES.items()
    ),
    Behaviour("chunk-size-short", wrong_chunk_size(b"3"), FAILS),
    Behaviour("chunk-size-long", wrong_chunk_size(b"ffff"), FAILS),
    Behaviour("chunk-size-space", wrong_chunk_size(b" 3 "), ANY),
    Behaviour("chunk-size-zeros", lambda r: endless(chunked_head(r), b"0" * 4096), FAILS),
    Behaviour(
        "chunk-extension-endless", lambda r: endless(chunked_head(r) + b"5;a=", b"x" * 65536), FAILS
    ),
    Behaviour(
        "chunk-extension-name-endless",
        lambda r: endless(chunked_head(r) + b"5;", b"x" * 65536),
        FAILS,
    ),
    Behaviour(
        "chunk-extensions",
        lambda r: [chunked_head(r) + chunk(r.payload, b';a=b;c="d"') + b"0;e\r\n\r\n"],
        GOOD,
    ),
    Behaviour(
        "chunk-extensions-many",
        lambda r: [
            chunked_head(r)
            + b"".join(chunk(part, b";" + b"a" * 4000) for part in split(r.payload, 1))
            + b"0\r\n\r\n"
        ],
        ANY,
    ),
    Behaviour(
        "chunks-of-one-byte",
        lambda r: [chunked_head(r) + b"".join(map(chunk, split(r.payload, 1))) + b"0\r\n\r\n"],
        GOOD,
    ),
    Behaviour(
        "chunks-of-one-byte-endless",
        lambda r: endless(chunked_head(r), chunk(b" ") * 10_000),
        ANY,
    ),
    Behaviour("chunks-of-one-byte-packets", lambda r: sent_in_chunks(r, r.payload, 1), GOOD),
    Behaviour("chunk-without-crlf", lambda r: [chunked_head(r) + b"2\r\n{}0\r\n\r\n", FIN], FAILS),
    Behaviour("chunk-lf-only", lambda r: [chunked_head(r) + b"2\n{}\n0\n\n", 0.02, FIN], ANY),
    Behaviour(
        "chunks-without-end", lambda r: [chunked_answer(r, end=b""), 0.02, FIN], FAILS, BODIES
    ),
    Behaviour("chunks-then-rst", lambda r: [chunked_answer(r, end=b""), 0.02, RST], FAILS, BODIES),
    Behaviour("chunks-then-silence", lambda r: [chunked_answer(r, end=b""), 30.0], FAILS, BODIES),
    Behaviour(
        "chunks-then-answer", lambda r: [chunked_answer(r) + full_answer(r, b"smuggled")], GOOD
    ),
    Behaviour("chunks-then-bytes", lambda r: [chunked_answer(r) + b"\r\n\r\nleft over"], GOOD),
    Behaviour(
        "trailers",
        lambda r: [
            chunked_answer(
                r,
                end=b"0\r\ncontent-length: 5\r\nx-request-id: t\r\nset-cookie: a=b\r\n"
                b"retry-after: 99\r\ntransfer-encoding: gzip\r\nconnection: close\r\n\r\n",
            )
        ],
        ANY,
    ),
    Behaviour(
        "trailers-endless",
        lambda r: endless(chunked_answer(r, end=b"0\r\n"), b"a: b\r\n" * 10_000),
        ANY,
    ),
    Behaviour(
        "trailer-value-endless",
        lambda r: endless(chunked_answer(r, end=b"0\r\na: "), b"b" * 65536),
        ANY,
    ),
    Behaviour(
        "trailer-name-endless",
        lambda r: endless(chunked_answer(r, end=b"0\r\n"), b"b" * 65536),
        ANY,
    ),
    Behaviour(
        "trailers-slow", lambda r: endless(chunked_answer(r, end=b"0\r\n"), b"a: b\r\n", 0.02), ANY
    ),
    Behaviour(
        "trailers-malformed", lambda r: [chunked_answer(r, end=b"0\r\nnonsense\r\n\r\n"), 0.02], ANY
    ),
    Behaviour("trailers-cut", lambda r: [chunked_answer(r, end=b"0\r\na: b\r\n"), 0.02, FIN], ANY),
    Behaviour(
        "early-answer",
        lambda r: [full_answer(r), 0.3],
        GOOD,
        (Surface.CHAT, Surface.PASSED_POST),
        body_bytes=4 * MB,
        is_early=True,
    ),
    Behaviour(
        "early-413-and-rst",
        lambda r: [full_answer(r, b'{"error":{"message":"large"}}', status=b"413 X"), 0.05, RST],
        ANY,
        (Surface.CHAT, Surface.PASSED_POST),
        body_bytes=4 * MB,
        is_early=True,
    ),
    Behaviour(
        "early-fin",
        lambda r: [FIN],
        FAILS,
        (Surface.CHAT, Surface.PASSED_POST),
        body_bytes=4 * MB,
        is_early=True,
    ),
    Behaviour(
        "body-never-read",
        lambda r: [2.5],
        FAILS,
        (Surface.CHAT, Surface.PASSED_POST),
        body_bytes=9 * MB,
        is_early=True,
    ),
]

ENCODINGS = [
    Behaviour(
        "gzip", lambda r: [encoded_answer(r, gzip.compress(r.payload), b"gzip")], GOOD, BODIES
    ),
    Behaviour(
        "x-gzip", lambda r: [encoded_answer(r, gzip.compress(r.payload), b"x-gzip")], ANY, BODIES
    ),
    Behaviour(
        "deflate", lambda r: [encoded_answer(r, zlib.compress(r.payload), b"deflate")], ANY, BODIES
    ),
    Behaviour(
        "gzip-stream", lambda r: [encoded_answer(r, gzip.compress(r.payload), b"gzip")], ANY, STREAM
    ),
    Behaviour("gzip-bomb", lambda r: [encoded_answer(r, gzip_zeros(1, 1024), b"gzip")], ANY),
    Behaviour("gzip-bomb-small", lambda r: [encoded_answer(r, gzip_zeros(1, 100), b"gzip")], ANY),
    Behaviour(
        "gzip-bomb-nested", lambda r: [encoded_answer(r, gzip_zeros(2, 1024), b"gzip, gzip")], ANY
    ),
    Behaviour(
        "gzip-bomb-nested-lines",
        lambda r: [encoded_answer(r, gzip_zeros(2, 1024), b"gzip", b"gzip")],
        ANY,
    ),
    Behaviour(
        "gzip-bomb-thrice",
        lambda r: [encoded_answer(r, gzip_zeros(3, 1024), b"gzip,gzip,gzip")],
        ANY,
    ),
    Behaviour(
        "gzip-bomb-error",
        lambda r: [full_answer(r, gzip_zeros(1, 1024), b"content-encoding: gzip", status=b"400 X")],
        ANY,
    ),
    Behaviour(
        "gzip-bomb-refused",
        lambda r: [full_answer(r, gzip_zeros(1, 1024), b"content-encoding: gzip", status=b"401 X")],
        ANY,
    ),
    Behaviour("deflate-bomb", lambda r: [encoded_answer(r, deflate_zeros(1024), b"deflate")], ANY),
    Behaviour(
        "gzip-50-layers",
        lambda r: [encoded_answer(r, gzip_zeros(50, 1), b", ".join([b"gzip"] * 50))],
        ANY,
    ),
    Behaviour(
        "gzip-1000-named",
        lambda r: [encoded_answer(r, r.payload, b",".join([b"gzip"] * 1000))],
        ANY,
    ),
    Behaviour("gzip-of-plain", lambda r: [encoded_answer(r, r.payload, b"gzip")], ANY),
    Behaviour(
        "gzip-cut", lambda r: [encoded_answer(r, gzip.compress(r.payload)[:-12], b"gzip")], ANY
    ),
    Behaviour(
        "gzip-members", lambda r: [encoded_answer(r, gzip.compress(b"{}") * 10_000, b"gzip")], ANY
    ),
    Behaviour(
        "gzip-endless-name",
        lambda r: endless(
            chunked_head(r, b"content-encoding: gzip") + chunk(b"\x1f\x8b\x08\x08" + bytes(6)),
            chunk(b"x" * 65536),
        ),
        ANY,
    ),
    Behaviour(
        "gzip-endless-nothing",
        lambda r: endless(
            chunked_head(r, b"content-encoding: gzip") + chunk(b"\x1f\x8b\x08\0" + bytes(6)),
            chunk(b"\0\0\0\xff\xff" * 10_000),
        ),
        ANY,
    ),
    Behaviour("br", lambda r: [encoded_answer(r, b"\x0b\x02\x80{}\x03", b"br")], ANY),
    Behaviour(
        "zstd", lambda r: [encoded_answer(r, b"\x28\xb5\x2f\xfd\x20\x02\x11\0\0{}", b"zstd")], ANY
    ),
    Behaviour("encoding-unknown", lambda r: [encoded_answer(r, r.payload, b"aes128gcm")], ANY),
    Behaviour("encoding-identity", lambda r: [encoded_answer(r, r.payload, b"identity")], GOOD),
    Behaviour("encoding-empty", lambda r: [encoded_answer(r, r.payload, b"")], ANY),
    Behaviour(
        "encoding-mixed",
        lambda r: [encoded_answer(r, gzip.compress(r.payload), b"identity, gzip")],
        ANY,
    ),
]

JSON = [
    Behaviour("60-mb-of-objects", lambda r: [full_answer(r, json_array(b"{}", 60))], ANY, BODIES),
    Behaviour("10-mb-of-objects", lambda r: [full_answer(r, json_array(b"{}", 10))], ANY, BODIES),
    Behaviour(
        "60-mb-of-choices",
        lambda r: [full_answer(r, b'{"choices":' + json_array(b"{}", 60) + b"}")],
        ANY,
        BODIES,
    ),
    Behaviour(
        "60-mb-of-zeros",
        lambda r: [full_answer(r, b'{"a":' + json_array(b"0", 60) + b"}")],
        ANY,
        BODIES,
    ),
    Behaviour("60-mb-of-arrays", lambda r: [full_answer(r, json_array(b"[]", 60))], ANY, CHAT),
    Behaviour("60-mb-of-strings", lambda r: [full_answer(r, json_array(b'"a"', 60))], ANY, CHAT),
    Behaviour(
        "60-mb-string",
        lambda r: [full_answer(r, with_extra_member(r, b'"a":"' + b"x" * (60 * MB) + b'"'))],
        ANY,
        BODIES,
    ),
    Behaviour(
        "60-mb-of-escapes",
        lambda r: [full_answer(r, with_extra_member(r, b'"a":"' + b"\\u00e9" * (10 * MB) + b'"'))],
        ANY,
        CHAT,
    ),
    Behaviour("60-mb-of-spaces", lambda r: [full_answer(r, b" " * (60 * MB))], ANY, CHAT),
    Behaviour(
        "60-mb-error",
        lambda r: [full_answer(r, json_array(b"{}", 60), status=b"400 X")],
        ANY,
        BODIES,
    ),
    Behaviour(
        "60-mb-error-503",
        lambda r: [full_answer(r, json_array(b"{}", 60), status=b"503 X")],
        ANY,
        CHAT,
    ),
    Behaviour("8-mb", answer_of_8_mb, GOOD, BODIES),
    Behaviour("80-mb", lambda r: sent_in_chunks(r, bytes(80 * MB), MB), ANY, BODIES),
    Behaviour(
        "1-m-keys",
        lambda r: [
            full_answer(r, b"{" + b",".join(b'"%d":0' % i for i in range(1_000_000)) + b"}")
        ],
        ANY,
        CHAT,
    ),
    Behaviour(
        "nested-100-000", lambda r: [full_answer(r, nested_json(100_000, b"[", b"]"))], ANY, BODIES
    ),
    Behaviour(
        "nested-900",
        lambda r: [full_answer(r, with_extra_member(r, b'"a":' + nested_json(900, b"[", b"]")))],
        ANY,
        BODIES,
    ),
    Behaviour(
        "nested-objects",
        lambda r: [
            full_answer(r, with_extra_member(r, b'"a":' + nested_json(900, b'{"a":', b"}")))
        ],
        ANY,
        BODIES,
    ),
    Behaviour("nested-unclosed", lambda r: [full_answer(r, b"[" * (10 * MB))], ANY, CHAT),
    Behaviour(
        "outside-json",
        lambda r: [full_answer(r, with_extra_member(r, b'"a":' + ODD_VALUES[r.variant]))],
        ANY,
        BODIES,
        variants=len(ODD_VALUES),
    ),
    Behaviour("surrogate", *extra_member(b'"a":"\\ud83d"', GOOD)),
    Behaviour(
        "surrogate-in-text",
        lambda r: [
            full_answer(r, r.payload.replace(r.nonce.encode(), r.nonce.encode() + b"\\ud83d"))
        ],
        GOOD,
        BODIES,
    ),
    Behaviour(
        "byte-order-mark", lambda r: [full_answer(r, b"\xef\xbb\xbf" + r.payload)], ANY, BODIES
    ),
    Behaviour(
        "utf-16", lambda r: [full_answer(r, r.payload.decode().encode("utf-16"))], ANY, BODIES
    ),
    Behaviour(
        "keys-twice", *extra_member(b'"model":"x","id":1,"choices":7,"usage":[],"error":null', GOOD)
    ),
    Behaviour("huge-integer", *extra_member(b'"a":' + b"9" * 1_000_000)),
    Behaviour(
        "integer-2-to-64", *extra_member(b'"created":18446744073709551616,"a":-9223372036854775809')
    ),
    Behaviour("huge-exponent", *extra_member(b'"a":1e999999999,"b":-1e-999999999')),
    Behaviour("number-endless-fraction", *extra_member(b'"a":0.' + b"3" * MB)),
    Behaviour("garbage-behind", lambda r: [full_answer(r, r.payload + b"garbage")], ANY, BODIES),
    Behaviour("body-empty", lambda r: [full_answer(r, b"")], ANY, BODIES),
    Behaviour(
        "bodies",
        lambda r: [
            full_answer(
                r, (b"null", b"[]", b'"x"', b"1", b"{}", b"true", b"{", b"<html>")[r.variant]
            )
        ],
        ANY,
        EVERYWHERE,
        variants=8,
    ),
    Behaviour(
        "error-in-200", lambda r: [full_answer(r, b'{"error":{"message":"no"}}')], ANY, EVERYWHERE
    ),
    Behaviour(
        "error-html-503",
        lambda r: [full_answer(r, b"<html>" * 100, status=b"503 X", kind=b"text/html")],
        ANY,
    ),
    Behaviour("error-and-answer", *extra_member(b'"error":{"message":"no"}')),
    Behaviour(
        "id-10-mb", lambda r: [full_answer(r, dumps(r.answer(id="x" * 10 * MB)))], ANY, BODIES
    ),
    Behaviour(
        "id-control",
        lambda r: [full_answer(r, dumps(r.answer(id="a\r\nset-cookie: b\0")))],
        ANY,
        BODIES,
    ),
    Behaviour(
        "id-surrogate",
        lambda r: [full_answer(r, dumps(r.answer(id="\ud83d", model="\ude00")))],
        ANY,
        BODIES,
    ),
    Behaviour(
        "model-control",
        lambda r: [full_answer(r, dumps(r.answer(model="a\r\nset-cookie: b\0")))],
        ANY,
        BODIES,
    ),
    Behaviour("tool-calls-100-000", lambda r: [with_calls(r, [call("{}")] * 100_000)], ANY, CHAT),
    Behaviour("arguments-10-mb", lambda r: [with_calls(r, [call("[" * 10 * MB)])], ANY, CHAT),
    Behaviour(
        "stream-for-whole",
        lambda r: [full_answer(r, b"".join(map(event, r.events())), kind=b"text/event-stream")],
        ANY,
        BODIES,
    ),
    Behaviour(
        "whole-for-stream",
        lambda r: [full_answer(r, b'{"id":"x","choices":[]}', kind=b"application/json")],
        ANY,
        STREAMS,
    ),
]

WRONG_TYPES = [
    wrong_type("body"),
    wrong_type("id", "id", surfaces=(*CHATS, Surface.RESPONSES)),
    wrong_type("model", "model", surfaces=(*CHATS, Surface.RESPONSES)),
    wrong_type("created", "created"),
    wrong_type("object", "object", surfaces=(*CHATS, *STREAMS[1:], Surface.RESPONSES)),
    wrong_type("type", "type", surfaces=EVERYWHERE),
    wrong_type("status", "status", surfaces=EVERYWHERE),
    wrong_type("error", "error", surfaces=EVERYWHERE),
    wrong_type("error-message", "error", "message"),
    wrong_type("error-code", "error", "code"),
    wrong_type("choices", "choices"),
    wrong_type("choice", "choices", 0),
    wrong_type("choice-index", "choices", 0, "index"),
    wrong_type("message", "choices", 0, "message"),
    wrong_type("content", "choices", 0, "message", "content"),
    wrong_type("finish-reason", "choices", 0, "finish_reason"),
    wrong_type("calls", "choices", 0, "message", "tool_calls"),
    wrong_type("call", "choices", 0, "message", "tool_calls", 0),
    wrong_type("call-function", "choices", 0, "message", "tool_calls", 0, "function"),
    wrong_type("call-arguments", "choices", 0, "message", "tool_calls", 0, "function", "arguments"),
    wrong_type("legacy-call", "choices", 0, "message", "function_call"),
    wrong_type("delta", "choices", 0, "delta", surfaces=STREAM),
    wrong_type("delta-content", "choices", 0, "delta", "content", surfaces=STREAM),
    wrong_type("delta-calls", "choices", 0, "delta", "tool_calls", surfaces=STREAM),
    wrong_type("delta-call", "choices", 0, "delta", "tool_calls", 0, surfaces=STREAM),
    wrong_type(
        "delta-call-index", "choices", 0, "delta", "tool_calls", 0, "index", surfaces=STREAM
    ),
    wrong_type("delta-call-id", "choices", 0, "delta", "tool_calls", 0, "id", surfaces=STREAM),
    wrong_type(
        "delta-function", "choices", 0, "delta", "tool_calls", 0, "function", surfaces=STREAM
    ),
    wrong_type(
        "delta-name", "choices", 0, "delta", "tool_calls", 0, "function", "name", surfaces=STREAM
    ),
    wrong_type("usage", "usage", surfaces=EVERYWHERE),
    wrong_type("prompt-tokens", "usage", "prompt_tokens", surfaces=(*CHATS, Surface.EMBEDDINGS)),
    wrong_type("completion-tokens", "usage", "completion_tokens"),
    wrong_type("total-tokens", "usage", "total_tokens", surfaces=(Surface.EMBEDDINGS, *CHATS)),
    wrong_type("input-tokens", "usage", "input_tokens", surfaces=(Surface.RESPONSES,)),
    wrong_type("prompt-details", "usage", "prompt_tokens_details"),
    wrong_type("cached-tokens", "usage", "prompt_tokens_details", "cached_tokens"),
    wrong_type("reasoning-tokens", "usage", "completion_tokens_details", "reasoning_tokens"),
    wrong_type("groq", "x_groq"),
    wrong_type("response", "response", surfaces=(Surface.RESPONSES, Surface.RESPONSES_STREAM)),
    wrong_type("response-id", "response", "id", surfaces=(Surface.RESPONSES_STREAM,)),
    wrong_type("response-usage", "response", "usage", surfaces=(Surface.RESPONSES_STREAM,)),
    wrong_type("response-output", "response", "output", surfaces=(Surface.RESPONSES_STREAM,)),
    wrong_type("output", "output", surfaces=(Surface.RESPONSES, Surface.RESPONSES_STREAM)),
    wrong_type("output-item", "output", 0, surfaces=(Surface.RESPONSES,)),
    wrong_type("output-content", "output", 0, "content", surfaces=(Surface.RESPONSES,)),
    wrong_type("output-call-id", "output", 0, "call_id", surfaces=(Surface.RESPONSES,)),
    wrong_type("item", "item", surfaces=(Surface.RESPONSES_STREAM,)),
    wrong_type("output-index", "output_index", surfaces=(Surface.RESPONSES_STREAM,)),
    wrong_type("event-delta", "delta", surfaces=STREAMS),
    wrong_type("sequence-number", "sequence_number", surfaces=STREAMS),
]
"""Values of all types for each field that the gateway reads, on each surface that has the field."""

SSE = [
    Behaviour("lines-cr", with_line_end(b"\r"), GOOD, STREAMS),
    Behaviour("lines-crlf", with_line_end(b"\r\n"), GOOD, STREAMS),
    Behaviour(
        "lines-mixed",
        lambda r: [
            full_answer(
                r,
                b"".join(event(e, end) for e, end in zip(r.events() * 2, ENDS, strict=False))
                + r.done,
            )
        ],
        GOOD,
        STREAMS,
    ),
    Behaviour(
        "lines-cr-split",
        lambda r: sent_in_chunks(r, r.payload.replace(b"\n", b"\r\n"), 1),
        GOOD,
        STREAMS,
    ),
    Behaviour("byte-by-byte", lambda r: sent_in_chunks(r, r.payload, 1, 0.0005), GOOD, STREAMS),
    Behaviour(
        "without-blank-line-at-end", lambda r: [full_answer(r, r.payload.rstrip())], ANY, STREAMS
    ),
    Behaviour(
        "without-space",
        lambda r: [full_answer(r, r.payload.replace(b"data: ", b"data:"))],
        GOOD,
        STREAMS,
    ),
    Behaviour(
        "other-fields",
        stream_of(
            b"id: \0\nretry: 99999999999999999999\nevent: error\n\n",
            b"data\n\n",
            b"data:\n\n",
            b"x\n\n",
            b"\xef\xbb\xbfdata: {}\n\n",
        ),
        ANY,
        STREAMS,
    ),
    Behaviour(
        "byte-order-mark-stream",
        lambda r: [full_answer(r, b"\xef\xbb\xbf" + r.payload)],
        ANY,
        STREAMS,
    ),
    Behaviour("blank-lines", stream_of(b"\n" * MB), GOOD, STREAMS),
    Behaviour("empty-events", stream_of(b"data: \n\n" * 100_000), GOOD, STREAMS),
    Behaviour("event-10-mb", text_events("x" * 10 * MB), GOOD, STREAMS),
    Behaviour("events-1-mb", text_events(*["x" * (MB - 200)] * 5), GOOD, STREAMS),
    Behaviour(
        "event-10-mb-of-objects",
        stream_of(b"data: " + json_array(b"{}", 10) + b"\n\n"),
        ANY,
        STREAMS,
    ),
    Behaviour(
        "events-1-mb-of-objects",
        stream_of(*[b'data: {"choices":' + json_array(b"{}", 0.9) + b"}\n\n"] * 10),
        ANY,
        STREAMS,
    ),
    Behaviour("events-20-000", text_events(*["x"] * 20_000), GOOD, STREAMS),
    Behaviour(
        "event-of-100-000-lines",
        stream_of(b"data: {\n" + b"data:\n" * 100_000 + b"data: }\n\n"),
        ANY,
        STREAMS,
    ),
    Behaviour(
        "event-nested",
        stream_of(b"data: " + nested_json(100_000, b"[", b"]") + b"\n\n"),
        ANY,
        STREAMS,
    ),
    Behaviour(
        "event-nested-900",
        stream_of(b'data: {"a":' + nested_json(900, b"[", b"]") + b"}\n\n"),
        ANY,
        STREAMS,
    ),
    Behaviour(
        "event-calls-10-000",
        lambda r: [stream_with(r, event(r.chunk({"tool_calls": [call("{}")] * 10_000})))],
        ANY,
        STREAM,
    ),
    Behaviour(
        "events-calls-10-000",
        lambda r: [
            stream_with(
                r,
                *(
                    event(r.chunk({"tool_calls": [call("{}") | {"index": i}]}))
                    for i in range(10_000)
                ),
            )
        ],
        ANY,
        STREAM,
    ),
    Behaviour(
        "event-id-10-mb",
        lambda r: [stream_with(r, event(r.events()[0] | {"id": "x" * 10 * MB}))],
        ANY,
        STREAMS,
    ),
    Behaviour(
        "event-id-900-kb",
        lambda r: [
            stream_with(r, event(with_value_at(r.events()[0], ("response", "id"), "r" * 900_000)))
        ],
        ANY,
        STREAMS,
    ),
    Behaviour("event-surrogate", text_events("\ud83d", "\ude00"), GOOD, STREAMS),
    Behaviour(
        "event-infinity", stream_of(b'data: {"choices":[{"logprob":-Infinity}]}\n\n'), GOOD, STREAMS
    ),
    Behaviour(
        "event-nan",
        stream_of(b'data: {"choices":[{"logprob":NaN}],"delta":"x"}\n\n'),
        GOOD,
        STREAMS,
    ),
    Behaviour(
        "event-invalid-utf-8",
        stream_of(b'data: {"choices":[{"delta":{"content":"\xff"}}]}\n\n'),
        ANY,
        STREAMS,
    ),
    Behaviour(
        "event-half-utf-8",
        lambda r: [
            stream_with(
                r,
                *(
                    b'data: {"choices":[{"delta":{"content":"' + part + b'"}}]}\n\n'
                    for part in split("\U0001f600".encode(), 2)
                ),
            )
        ],
        ANY,
        STREAMS,
    ),
    Behaviour(
        "event-huge-integer",
        stream_of(b'data: {"created":' + b"9" * 100_000 + b"}\n\n"),
        ANY,
        STREAMS,
    ),
    Behaviour(
        "event-keys-twice",
        stream_of(b'data: {"choices":[],"choices":7,"error":null}\n\n'),
        ANY,
        STREAMS,
    ),
    Behaviour("event-no-json", stream_of(b"data: hello\n\n"), ANY, STREAMS),
    Behaviour("event-cut-json", stream_of(b'data: {"choices":[{"delta"\n\n'), ANY, STREAMS),
    Behaviour("event-html", stream_of(b"<html>502</html>\n\n"), ANY, STREAMS),
    Behaviour("event-control", stream_of(b'data: {"a":"\0\x01"}\n\n'), ANY, STREAMS),
    Behaviour(
        "event-values",
        lambda r: [
            stream_with(
                r,
                b"data: "
                + (b"null", b"[]", b"1", b'"x"', b"true", b"{}", b"[DONE", b"-")[r.variant]
                + b"\n\n",
            )
        ],
        ANY,
        STREAMS,
        variants=8,
    ),
    Behaviour(
        "error-first",
        lambda r: [full_answer(r, b'data: {"error":{"message":"no"}}\n\n')],
        FAILS,
        STREAMS,
    ),
    Behaviour("error-midway", stream_of(b'data: {"error":{"message":"no"}}\n\n'), ANY, STREAMS),
    Behaviour(
        "error-event",
        lambda r: [full_answer(r, b'event: error\ndata: {"type":"error","message":"no"}\n\n')],
        FAILS,
        STREAMS,
    ),
    Behaviour(
        "error-10-mb",
        stream_of(b'data: {"error":{"message":"' + b"x" * 10 * MB + b'"}}\n\n'),
        ANY,
        STREAMS,
    ),
    Behaviour(
        "response-failed",
        lambda r: [
            stream_with(
                r, event({"type": "response.failed", "response": {"error": VALUES[r.variant]}})
            )
        ],
        ANY,
        STREAMS,
        variants=len(VALUES),
    ),
    Behaviour("done-first", lambda r: [full_answer(r, b"data: [DONE]\n\n")], FAILS, STREAMS),
    Behaviour("done-then-more", lambda r: [full_answer(r, r.payload + r.payload)], GOOD, STREAMS),
    Behaviour(
        "done-then-endless",
        lambda r: endless(chunked_head(r) + chunk(r.payload), chunk(b": x\n\n" * 1000)),
        ANY,
        STREAMS,
    ),
    Behaviour(
        "done-then-silence", lambda r: [chunked_head(r) + chunk(r.payload), 30.0], ANY, STREAMS
    ),
    Behaviour(
        "without-done",
        lambda r: [full_answer(r, r.payload.replace(b"data: [DONE]\n\n", b""))],
        GOOD,
        STREAMS,
    ),
    Behaviour("stream-fin", truncated_stream(), FAILS, STREAMS),
    Behaviour("stream-rst", truncated_stream(close=RST), FAILS, STREAMS),
    Behaviour("stream-cut-in-event", truncated_stream(b'data: {"choices":['), FAILS, STREAMS),
    Behaviour(
        "stream-cut-in-long-event",
        truncated_stream(b'data: {"choices":[' + b" " * 2 * MB),
        FAILS,
        STREAMS,
    ),
    Behaviour(
        "stream-rst-in-long-event",
        truncated_stream(b'data: {"choices":[' + b" " * 2 * MB, close=RST),
        FAILS,
        STREAMS,
    ),
    Behaviour(
        "stream-fin-after-number", truncated_after_number, FAILS, STREAMS, variants=len(VALUES)
    ),
    Behaviour(
        "stream-silence",
        lambda r: [chunked_head(r) + chunk(event(r.events()[0])), 30.0],
        FAILS,
        STREAMS,
    ),
    Behaviour("stream-empty", lambda r: [full_answer(r, b"")], FAILS, STREAMS),
    Behaviour(
        "stream-only-comments", lambda r: [full_answer(r, b": ping\n\n" * 100)], FAILS, STREAMS
    ),
    Behaviour("stream-html", lambda r: [full_answer(r, b"<html>" * 1000)], ANY, STREAMS),
    Behaviour(
        "comments-first",
        lambda r: [full_answer(r, b": ping\n\n" * 1000 + r.payload)],
        GOOD,
        STREAMS,
    ),
    Behaviour(
        "comments-endless",
        lambda r: endless(chunked_head(r), chunk(b": ping\n\n" * 10_000)),
        ANY,
        STREAMS,
    ),
    Behaviour(
        "comments-slow", lambda r: endless(chunked_head(r), chunk(b": ping\n\n"), 0.05), ANY, STREAM
    ),
    Behaviour(
        "comment-endless",
        lambda r: endless(chunked_head(r) + chunk(b": "), chunk(b"x" * 65536)),
        ANY,
        STREAMS,
    ),
    Behaviour("comments-endless-later", endless_stream(b": ping\n\n" * 10_000), ANY, STREAMS),
    Behaviour("comment-lines-endless", endless_stream(b": ping\n" * 10_000), ANY, STREAMS),
    Behaviour("event-endless", endless_stream(b"x" * 65536), ANY, STREAMS),
    Behaviour(
        "data-line-endless",
        lambda r: endless(chunked_head(r) + chunk(b"data: "), chunk(b"x" * 65536)),
        ANY,
        STREAMS,
    ),
    Behaviour("data-lines-endless", endless_stream(b"data: x\n" * 10_000), ANY, STREAMS),
    Behaviour("events-endless", endless_stream(b'data: {"choices":[]}\n\n' * 1000), ANY, STREAMS),
    Behaviour("events-endless-empty", endless_stream(b"\n" * 65536), ANY, STREAMS),
    Behaviour(
        "events-endless-slow", endless_stream(b'data: {"choices":[]}\n\n', 0.05), ANY, STREAM
    ),
    Behaviour("bytes-endless-slow", endless_stream(b"x", 0.02), ANY, STREAM),
]

ECHOES = [
    Behaviour("echo", echo_key(str), ANY, EVERYWHERE),
    Behaviour("echo-bearer", echo_key(lambda key: f"Bearer {key}"), ANY, BODIES),
    Behaviour("echo-prefix", echo_key(lambda key: f"{key[:12]}..."), ANY, BODIES),
    Behaviour("echo-masked", echo_key(lambda key: f"{key[:16]}****{key[-4:]}"), ANY, EVERYWHERE),
    Behaviour("echo-escaped", echo_key_escaped, ANY, EVERYWHERE),
    Behaviour("echo-split", echo_key_over_chunks, ANY, (*BODIES, *STREAMS)),
    Behaviour("echo-over-events", echo_key_over_events, ANY, STREAMS),
    Behaviour("echo-gzip", echo_key_compressed, ANY, BODIES),
    Behaviour(
        "echo-kind",
        lambda r: [full_answer(r, kind=b"text/plain; x=" + r.sent_key.encode())],
        ANY,
        ANYWHERE,
    ),
    *(
        Behaviour(f"echo-{status}", echo_key(str, b"%d X" % status), ANY, EVERYWHERE)
        for status in (400, 401, 403, 404, 409, 413, 422, 429, 503)
    ),
    Behaviour(
        "echo-error-masked",
        echo_key(lambda key: f"{key[:16]}****{key[-4:]}", b"400 X"),
        ANY,
        EVERYWHERE,
    ),
    *(
        Behaviour(
            f"echo-{name.decode()}",
            echo_key_in_header(name),
            ANY,
            ANYWHERE,
        )
        for name in (b"x-request-id", b"x-ratelimit-key", b"retry-after", b"x-sandbox")
    ),
    Behaviour("request-id-100-kb", with_headers(b"x-request-id: " + b"r" * 90_000), ANY),
    Behaviour("request-id-twice", with_headers(b"x-request-id: a", b"x-request-id: b"), ANY),
]

LATER = (
    *WAITS,
    *(b"0", b"1.5", b"1e308", b"86400000", b"Mon, 01 Jan 9999 00:00:00 -9999"),
    *(b"Thu, 01 Jan 1970 00:00:00 GMT", b"Fri, 31 Dec 9999 23:59:59 GMT"),
    b"Mon, 01 Jan 2030 00:00:00 +9999999999",
)
"""Values of Retry-After, most of them invalid."""

RETRIES = [
    Behaviour(
        "retry-after-503",
        header_values(b"retry-after", *LATER, status=b"503 X"),
        ANY,
        ANYWHERE,
        len(LATER),
    ),
    Behaviour(
        "retry-after-429",
        header_values(b"retry-after", *LATER, status=b"429 X"),
        ANY,
        CHATS,
        len(LATER),
    ),
    Behaviour("retry-after-200", header_values(b"retry-after", *LATER), ANY, CHATS, len(LATER)),
    Behaviour(
        "retry-after-400",
        header_values(b"retry-after", *LATER, status=b"400 X"),
        ANY,
        CHAT,
        len(LATER),
    ),
    Behaviour(
        "retry-after-ms-503",
        header_values(b"retry-after-ms", *LATER, status=b"503 X"),
        ANY,
        CHATS,
        len(LATER),
    ),
    Behaviour(
        "retry-after-twice",
        with_headers(b"retry-after: 1", b"retry-after: x", status=b"503 X"),
        ANY,
    ),
]

BEHAVIOURS = (*HEADS, *LENGTHS, *ENCODINGS, *JSON, *WRONG_TYPES, *SSE, *ECHOES, *RETRIES)


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
