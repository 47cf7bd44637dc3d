"""HTTP from clients: the requests that `BoundedProtocol` passes to the app for any bytes.

Each input is the bytes of one connection.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import h11
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from router_service.http.protocol import (
    BoundedProtocol,
    ConnectionLimits,
    protocol_with_limits,
)
from tests.attacks import CHUNK_SIZES, LENGTHS, PATHS
from tests.fuzz.changes import change_lines
from tests.fuzz.target import (
    FakeTransport,
    randomness,
    read_by_h11,
    splits,
    virtual_loop,
)

LIMITS = ConnectionLimits(max_header_bytes=2000, header_timeout_s=10.0, write_timeout_s=10.0)
PROTOCOL = protocol_with_limits(LIMITS)


BODY_TIMEOUT_S = 60.0
MAX_IDLE_S = 150.0
"""When all connections without traffic are closed: the app waits 60 s for a body, and uvicorn waits
75 s for another request, as the gateway configures it."""

_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")
_FORBIDDEN = re.compile(rb"[\r\n\0]")


@dataclass(slots=True)
class Request:
    """A request as one side understood it."""

    method: bytes
    target: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes = b""
    is_complete: bool = False

    @property
    def head(self) -> tuple[bytes, bytes, list[tuple[bytes, bytes]]]:
        """Return everything but the body."""
        return self.method, self.target, self.headers

    def agrees_with(self, other: Request) -> bool:
        """Return whether both understood the same request, as far as both have it."""
        if self.head != other.head:
            return False
        if self.is_complete and other.is_complete:
            return self.body == other.body
        if self.is_complete or other.is_complete:
            whole, part = (self, other) if self.is_complete else (other, self)
            return whole.body.startswith(part.body)
        return self.body.startswith(other.body) or other.body.startswith(self.body)


class Recorder:
    """App that reads each request whole, answers it, and records it."""

    def __init__(self, *, is_hasty: bool = False) -> None:
        self.requests: list[Request] = []
        self._is_hasty = is_hasty
        self.errors: list[Exception] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a complete request; a hasty app answers at once."""
        try:
            await self._serve(scope, receive, send)
        except Exception as exc:
            self.errors.append(exc)
            raise

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        query = b"?" + scope["query_string"] if scope["query_string"] else b""
        request = Request(
            scope["method"].encode(), scope["raw_path"] + query, list(scope["headers"])
        )
        self.requests.append(request)
        _check_scope(scope)
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                while not (self._is_hasty or request.is_complete):
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return
                    request.body += message["body"]
                    request.is_complete = not message["more_body"]
        except TimeoutError:
            pass  # answered all the same: the gateway answers 408
        head = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": b"ok"})


def _check_scope(scope: Scope) -> None:
    """Check properties that an app relies on."""
    for name, value in scope["headers"]:
        assert _TOKEN.fullmatch(name), f"the app got a header named {name!r}"
        assert not _FORBIDDEN.search(value), f"the app got the header value {value!r}"
    size = sum(len(name) + len(value) for name, value in scope["headers"])
    assert size <= LIMITS.max_header_bytes, f"the app got {size} bytes of headers"
    assert not _FORBIDDEN.search(scope["raw_path"]), f"the app got path {scope['raw_path']!r}"
    path = unquote(scope["raw_path"].decode("ascii"))
    assert scope["path"] == path, f"{scope['path']!r} is not {scope['raw_path']!r} decoded"
    lengths = [value for name, value in scope["headers"] if name == b"content-length"]
    codings = [value for name, value in scope["headers"] if name == b"transfer-encoding"]
    assert len(lengths) <= 1, f"the app got several lengths: {lengths}"
    assert not (lengths and codings), f"the app got {lengths} and {codings}"
    assert [v.lower() for v in codings] in ([], [b"chunked"]), f"the app got {codings}"
    hosts = [value for name, value in scope["headers"] if name == b"host"]
    assert len(hosts) <= 1, f"the app got several hosts: {hosts}"
    assert scope["http_version"] in {"1.0", "1.1"}, f"the app got HTTP/{scope['http_version']}"


class ClientTransport(FakeTransport):
    """A client's connection."""

    def __init__(self) -> None:
        super().__init__()
        self.is_unread = False
        """Whether the client reads nothing."""
        self.protocol: BoundedProtocol | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Record the data; the first data that is not read stops the gateway."""
        is_first = not self.written
        super().write(data)
        if self.is_unread and is_first and self.written and self.protocol is not None:
            self.protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        """Return how many bytes the client has not read."""
        return len(self.written) if self.is_unread else 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 - asyncio's own
        """Return the addresses."""
        return ("127.0.0.1", 80) if name in {"peername", "sockname"} else default


@dataclass(slots=True)
class Seen:
    """Result of one connection."""

    requests: list[Request]
    written: bytes
    statuses: list[int] = field(default_factory=list)

    @property
    def complete(self) -> list[Request]:
        """Return the requests that the app read to their end."""
        return [request for request in self.requests if request.is_complete]


async def _connect(
    parts: Sequence[bytes],
    app: Recorder,
    *,
    is_pumped: bool = False,
    slow: random.Random | None = None,
) -> Seen:
    """Send the parts; with `is_pumped`, the app runs between them, as on a slow link.

    A slow client makes pauses, sometimes reads no answers, and waits until it is disconnected.
    """
    loop, state = virtual_loop(), ServerState()
    _CONFIG.loaded_app = app
    protocol, transport = PROTOCOL(_CONFIG, state, {}), ClientTransport()
    transport.protocol = protocol
    transport.is_unread = slow is not None and slow.random() < 0.3
    protocol.connection_made(transport)
    for part in parts:
        if slow:
            await asyncio.sleep(slow.choice((0, 0, 1, LIMITS.header_timeout_s / 2)))
        elif is_pumped or not transport.is_reading():
            await loop.settle()
        if not transport.is_reading():
            break
        protocol.data_received(part)
    await loop.settle()
    if slow:
        await asyncio.sleep(MAX_IDLE_S)
        assert transport.is_closing(), f"the connection is still open after {MAX_IDLE_S:g} s"
    protocol.eof_received()
    transport.close()
    protocol.connection_lost(None)
    await loop.settle()
    assert not state.tasks, f"requests outlive their connection: {state.tasks}"
    assert not app.errors, f"the app failed: {app.errors}"
    return Seen(app.requests, bytes(transport.written))


_CONFIG = uvicorn.Config(
    Recorder(), log_config=None, access_log=False, lifespan="off", timeout_keep_alive=75
)
_CONFIG.load()
logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL + 1)


def check(data: bytes) -> None:
    """Check that all splits of the bytes are read equally, and as h11 reads them."""
    loop, rng = virtual_loop(), randomness(data)
    seen: list[Seen] = []
    for parts in splits(data, rng):
        for is_pumped in (False, True):
            seen.append(loop.finish(_connect(parts, Recorder(), is_pumped=is_pumped)))
            seen[-1].statuses = list(_statuses(seen[-1]))
    first = seen[0]
    for other in seen[1:]:
        _compare(first, other)
    longest = max(seen, key=lambda one: len(one.requests))
    for parts in splits(data, rng):
        hasty = loop.finish(_connect(parts, Recorder(is_hasty=True), is_pumped=True))
        _compare_heads(hasty, longest)
        slow = loop.finish(_connect(parts, Recorder(), slow=rng))
        _compare_heads(slow, longest)
    longest = max(seen, key=lambda one: len(one.complete))
    _compare_with_h11(data, longest)


def _compare(one: Seen, other: Seen) -> None:
    """Check that a request is equal in two splits of the bytes, if both have it."""
    for index, (left, right) in enumerate(zip(one.requests, other.requests, strict=False)):
        if not left.agrees_with(right):
            raise AssertionError(f"request {index} depends on how it is cut: {left} or {right}")
    refusals = [[status for status in seen.statuses if status >= 400] for seen in (one, other)]
    if not any(refusals) and len(one.complete) != len(other.complete):
        raise AssertionError(
            f"{len(one.complete)} or {len(other.complete)} requests, depending on the cuts"
        )


def _compare_heads(other: Seen, seen: Seen) -> None:
    """Check that no part of a body becomes a request if app or client act at other times."""
    heads = [[request.head for request in one.requests] for one in (other, seen)]
    assert heads[0] == heads[1][: len(heads[0])], (
        f"an app that answers at once, or a slow client, has {heads[0]}, others {heads[1]}"
    )


def _statuses(seen: Seen) -> Iterator[int]:
    """Read the answers; all written bytes must be answers, each to a request."""
    rest, answered = seen.written, 0
    while rest:
        head, found, rest = rest.partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        is_answer = found and lines[0].startswith(b"HTTP/1.1 ")
        assert is_answer, f"not an answer: {head!r}"
        status = int(lines[0].split()[1])
        if status == 100:
            continue
        assert status != 500, "the gateway failed"
        yield status
        headers = dict(line.lower().split(b": ", 1) for line in lines[1:])
        is_head = status == 200 and seen.complete[answered].method == b"HEAD"
        rest = rest if is_head else rest[int(headers[b"content-length"]) :]
        if status == 200:
            answered += 1
        else:
            assert not rest, f"something follows the refusal: {rest!r}"
    assert answered == len(seen.complete), f"{answered} answers to {len(seen.complete)} requests"


def _compare_with_h11(data: bytes, seen: Seen) -> None:
    """Check that h11 and the gateway understand the same, if both accept a request."""
    messages, problem = read_by_h11(h11.SERVER, data)
    theirs = [
        Request(head.method, head.target, [*head.headers], message.body, is_complete=True)
        for message in messages
        if message.is_complete and isinstance(head := message.head, h11.Request)
    ]
    for index, (ours, other) in enumerate(zip(seen.complete, theirs, strict=False)):
        assert _message(ours) == _message(other), f"request {index} is {ours}, and for h11 {other}"
    is_explained = any(re.match(pattern, problem) for pattern in EXPLAINED)
    if len(seen.complete) > len(theirs) and not is_explained:
        raise AssertionError(
            f"h11 refuses what the gateway serves, {seen.complete[len(theirs)]}: {problem}"
        )


def _message(request: Request) -> tuple[object, ...]:
    """Return a request without the parts in which both may differ.

    Blanks around values have no meaning. The gateway ignores upgrades, and hides requests for one
    from the app. It uses the path of an absolute address, and drops fragments, which do not belong
    to a request's target (RFC 9112, section 3.2).
    """
    headers = [(n, v.strip(b" \t")) for n, v in request.headers if n not in _UPGRADE_HEADERS]
    target = _ORIGIN.sub(b"", request.target.partition(b"#")[0])
    return request.method, target or b"/", headers, request.body


_ORIGIN = re.compile(rb"^[A-Za-z][A-Za-z0-9+.-]*://[^/?]*")
_UPGRADE_HEADERS = {b"connection", b"upgrade", b"http2-settings"}

EXPLAINED = {
    "no request line received": "blank lines before a request are skipped (RFC 9112, section 2.2)",
    r"illegal request line: bytearray\(b.\S+ .* (RTSP|ICE)/1\.[01]": "read as HTTP's versions are",
    r"illegal request line: bytearray\(b.\S+ +\S+ +HTTP/": "several blanks are read as one",
    "Missing mandatory Host": "the gateway is one site, and does not read it",
}
"""Reason why the gateway accepts a request that h11 refuses, by the start of h11's error."""


TOKENS = (
    *(b"GET / HTTP/1.1\r\n", b"POST /v1/chat/completions HTTP/1.1\r\n", b"HEAD "),
    *(b"CONNECT a:1 HTTP/1.1\r\n", b"OPTIONS * HTTP/1.1\r\n"),
    *(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"HTTP/1.0", b"HTTP/0.9", b"host: a\r\n"),
    *(b"content-length: 3\r\n", b"Content-Length:", b"transfer-encoding: chunked\r\n"),
    *(b"Transfer-Encoding:", b"gzip, chunked", b"connection: close\r\n"),
    *(b"connection: keep-alive\r\n", b"connection: upgrade\r\n", b"upgrade: h2c\r\n"),
    *(b"upgrade: websocket\r\n", b"expect: 100-continue\r\n", b"trailer: a\r\n"),
    *(b"proxy-connection: close\r\n", b"0\r\n\r\n", b"3\r\nabc\r\n", b"3;a=b\r\nabc\r\n"),
    *(b';a="b\r\n"', b"ffffffffffffffff\r\n", b"\r\n\r\n", b"\r\n", b"\n\n", b"\r", b"\0", b" "),
    *(b"\t", b"%00", b"%2e%2e/", b"http://a/", b"\xff", b": ", b" :", b"?a=b#c"),
)


ATTACKS = (
    *(b"POST / HTTP/1.1\r\ncontent-length: %b\r\n\r\nhello" % x for x in LENGTHS.values()),
    *(
        b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n%b\r\nhello\r\n0\r\n\r\n" % size
        for size in CHUNK_SIZES.values()
    ),
    *(b"GET %b HTTP/1.1\r\n\r\n" % path for path in PATHS),
)


def change(data: bytes, rng: random.Random) -> bytes:
    """Change an input's lines."""
    return change_lines(data, TOKENS, rng)
