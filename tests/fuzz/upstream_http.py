"""HTTP from upstreams: the answers that `Connection` reads from any bytes.

Each input is the bytes of one connection. Its first byte says how the connection ends: closed
(even) or reset (odd).
"""

from __future__ import annotations

import asyncio
import random
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import h11

from router_service.core.errors import UpstreamError
from router_service.upstream.connection import Connection
from tests.attacks import CHUNK_SIZES, LENGTHS, WAITS
from tests.fuzz.changes import change_lines
from tests.fuzz.target import (
    FakeTransport,
    randomness,
    read_by_h11,
    splits,
    virtual_loop,
)

RawHeaders = list[tuple[bytes, bytes]]


@dataclass(slots=True)
class Outcome:
    """Result of reading one answer."""

    status: int | None = None
    headers: RawHeaders = field(default_factory=list)
    body: bytes = b""
    error: str = ""
    is_reusable: bool = False


class UpstreamTransport(FakeTransport):
    """An upstream's connection that accepts everything at once."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 - asyncio's own
        """Return a socket on which nothing arrives."""
        return _silent()[0] if name == "socket" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Ignore the limits."""


_sockets: list[tuple[socket.socket, socket.socket]] = []


def _silent() -> tuple[socket.socket, socket.socket]:
    if not _sockets:
        _sockets.append(socket.socketpair())
    return _sockets[0]


async def _exchange(parts: Sequence[bytes], *, is_reset: bool, is_pumped: bool) -> Outcome:
    """Send a request, let the upstream send these parts, and read the answer."""
    connection, transport = Connection(), UpstreamTransport()
    connection.connection_made(transport)
    await connection.send("m", b"GET / HTTP/1.1\r\n\r\n", b"", 1.0)
    outcome = Outcome()
    reading = asyncio.create_task(_read(connection, outcome))
    await _play(connection, transport, parts, is_pumped=is_pumped)
    await virtual_loop().settle()
    if not transport.is_closed:
        connection.connection_lost(ConnectionResetError("reset") if is_reset else None)
    await reading
    outcome.is_reusable = connection.is_reusable and not connection.is_stale
    connection.close()
    return outcome


async def _play(
    connection: Connection, transport: UpstreamTransport, parts: Sequence[bytes], *, is_pumped: bool
) -> None:
    """Send parts while they are read."""
    for part in parts:
        if is_pumped or transport.is_reading_paused:
            await virtual_loop().settle()
        if transport.is_closed or transport.is_reading_paused:
            break
        connection.data_received(part)


async def _read(connection: Connection, outcome: Outcome) -> None:
    try:
        await connection.read_head()
        outcome.status, outcome.headers = connection.status, list(connection.headers)
        while part := await connection.read():
            outcome.body += part
    except UpstreamError as exc:
        outcome.error = exc.problem


def check(data: bytes) -> None:
    """Check that all splits of the bytes are read equally, and as h11 reads them."""
    loop, rng = virtual_loop(), randomness(data)
    is_reset, sent = bool(data[:1] and data[0] % 2), data[1:]
    outcomes = [
        loop.finish(_exchange(parts, is_reset=is_reset, is_pumped=is_pumped))
        for parts in splits(sent, rng)
        for is_pumped in (False, True)
    ]
    first = outcomes[0]
    for other in outcomes[1:]:
        _compare(first, other)
    for outcome in outcomes:
        _check_answer(outcome)
    if not is_reset:
        _compare_with_h11(sent, first)


def _compare(one: Outcome, other: Outcome) -> None:
    """Check that splits change at most how much of an answer precedes an error."""
    if not (one.error or other.error):
        assert one == other, f"the answer depends on how it is cut: {one} or {other}"
        return
    assert bool(one.error) == bool(other.error), (
        f"whether the answer is good depends on how it is cut: {one} or {other}"
    )
    if one.status is not None and other.status is not None:
        heads = (one.status, one.headers), (other.status, other.headers)
        assert heads[0] == heads[1], f"the head depends on how it is cut: {heads}"
    is_start = one.body.startswith(other.body) or other.body.startswith(one.body)
    assert is_start, f"the body depends on how it is cut: {one.body!r} or {other.body!r}"


def _check_answer(outcome: Outcome) -> None:
    if outcome.status is None:
        assert outcome.error, "an answer without a status"
        return
    # `UpstreamClient.send` expects no status below 200.
    assert not 100 <= outcome.status < 200, f"the informational status {outcome.status}"
    for name, value in outcome.headers:
        assert name, "a header without a name"
        assert name == name.lower(), f"a header named {name!r}"
        clean = not any(char in name + value for char in b"\r\n\0")
        assert clean, f"the header {name!r} has the value {value!r}"
    # Leading zeros are valid (RFC 9110, section 8.6).
    stated = [value.strip() for name, value in outcome.headers if name == b"content-length"]
    lengths = {value.lstrip(b"0") or b"0" for value in stated}
    if lengths and not outcome.error and outcome.status not in {204, 304}:
        assert lengths == {b"%d" % len(outcome.body)}, f"{lengths} for {len(outcome.body)} bytes"


def _compare_with_h11(sent: bytes, ours: Outcome) -> None:
    """Check that h11 and the gateway understand the same, if both accept an answer."""
    messages, problem = read_by_h11(h11.CLIENT, sent)
    if not (ours.error or problem):
        theirs = messages[-1].head
        assert isinstance(theirs, h11.Response)
        headers = [(name, value.strip(b" \t")) for name, value in ours.headers]
        # h11 returns `chunked` in lower case.
        headers = [(n, v.lower() if n == b"transfer-encoding" else v) for n, v in headers]
        mine = (ours.status, headers, ours.body)
        other = (theirs.status_code, [*theirs.headers], messages[-1].body)
        assert mine == other, f"the answer is {mine}, and for h11 {other}"
        return
    place = "behind" if messages else "in"
    is_explained = any(re.match(pattern, f"{place} the head: {problem}") for pattern in EXPLAINED)
    assert ours.error or is_explained, f"h11 refuses what the gateway takes, {ours}: {problem}"


EXPLAINED = {
    r"in the head: illegal status line: bytearray\(b.HTTP/1\.[01] \d{3} ": "no reason is read",
    "in the head: InformationalResponse status_code": "a status below 100 is refused later",
    "in the head: no response line": "blank lines before an answer are skipped",
    "in the head: multiple Transfer-Encoding": "`chunked` twice is read as once",
    "in the head: Only Transfer-Encoding": "other transfer codings are refused later",
    "behind the head: (multiple|Only|conflicting|bad) ": "trailers are not read",
}
"""Reason why the gateway accepts an answer that h11 refuses, by the start of h11's error."""


TOKENS = (
    *(b"HTTP/1.1 200 OK\r\n", b"HTTP/1.0 200\r\n", b"HTTP/1.1 204 No Content\r\n"),
    *(b"HTTP/1.1 304 Not Modified\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"),
    b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
    *(b"HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n", b"HTTP/1.1 429 \r\n", b"HTTP/1.1 999 \r\n"),
    *(b"HTTP/2.0 ", b"content-length: 3\r\n", b"Content-Length:"),
    *(b"transfer-encoding: chunked\r\n", b"Transfer-Encoding:", b"gzip, chunked"),
    *(b"connection: close\r\n", b"connection: keep-alive\r\n", b"upgrade: h2c\r\n"),
    *(b"content-encoding: gzip\r\n", b"content-encoding: gzip, deflate\r\n"),
    *(b"content-encoding: identity\r\n", b"content-type: text/event-stream\r\n"),
    *(b"retry-after: 3\r\n", b"retry-after: Mon, 01 Jan 2100 00:00:00 GMT\r\n"),
    *(b"retry-after: %b\r\n" % wait for wait in WAITS if len(wait) < 100),
    *(b"x-ratelimit-remaining-tokens: 1\r\n", b"x-request-id: a\r\n", b"trailer: a\r\n"),
    *(b"0\r\n\r\n", b"3\r\nabc\r\n", b"3;a=b\r\nabc\r\n", b"ffffffffffffffff\r\n", b"\r\n\r\n"),
    *(b"\r\n", b"\n\n", b"\r", b"\0", b" ", b"\t", b"\xff", b": ", b" :"),
)

ATTACKS = (
    *(b"\0HTTP/1.1 200 OK\r\ncontent-length: %b\r\n\r\nhello" % x for x in LENGTHS.values()),
    *(
        b"\0HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n%b\r\nhello\r\n0\r\n\r\n" % size
        for size in CHUNK_SIZES.values()
    ),
    *(b"\0HTTP/1.1 503 X\r\nretry-after: %b\r\ncontent-length: 0\r\n\r\n" % wait for wait in WAITS),
)


def change(data: bytes, rng: random.Random) -> bytes:
    """Change an input's lines."""
    return change_lines(data, TOKENS, rng)
