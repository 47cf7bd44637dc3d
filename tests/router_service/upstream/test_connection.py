"""Limits on what an upstream can send, however it is split into packets, and decompression."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import tracemalloc
import zlib
from collections.abc import Callable

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router_service.upstream.connection import (
    MAX_FRAMING_BYTES,
    MAX_HEAD_BYTES,
    MAX_HEADERS,
    MAX_INFORMATIONAL,
    MAX_PART_BYTES,
    Connection,
    Decompressor,
    read_codings,
)

HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
OK = HEAD + b"content-length: 2\r\n\r\n{}"


async def read(connection: Connection) -> tuple[int, bytes]:
    """Return the status and the body of what was fed to a connection."""
    await connection.read_head()
    body = b""
    while part := await connection.read():
        body += part
    return connection.status, body


def exchange(data: bytes, packet_bytes: int) -> tuple[int, bytes, int]:
    """Feed an answer in packets, and return status, body, and how much was accepted."""

    async def run() -> tuple[int, bytes, int]:
        connection, taken = Connection(), 0
        await connection.send(b"", b"", None)
        while taken < len(data) and not connection.is_stale:
            connection.data_received(data[taken : taken + packet_bytes])
            taken += packet_bytes
        try:
            return *await asyncio.wait_for(read(connection), 30), taken
        except httpx.RemoteProtocolError as exc:
            exc.args = (*exc.args, taken)
            raise

    return asyncio.run(run())


TOO_MUCH = {
    "trailers": CHUNKED + b"0\r\n" + b"a:b\r\n" * 200_000,
    "trailers after content": CHUNKED + b"1\r\nx\r\n0\r\n" + b"a:b\r\n" * 200_000,
    "a trailer's value": CHUNKED + b"0\r\na:" + b"x" * 1_000_000,
    "a trailer's name": CHUNKED + b"0\r\n" + b"x" * 1_000_000,
    "a chunk extension": CHUNKED + b"1;" + b"x" * 1_000_000,
    "chunk extensions": CHUNKED + (b"1;" + b"x" * 1000 + b"\r\ny\r\n") * 1000,
    "zeros of a chunk size": CHUNKED + b"0" * 1_000_000,
    "headers": HEAD + b"a:b\r\n" * 200_000,
    "headers of a whole answer": HEAD + b"a:b\r\n" * MAX_HEADERS + b"content-length: 0\r\n\r\n",
    "a value of a whole answer": (
        HEAD + b"a:" + b"x" * MAX_HEAD_BYTES + b"\r\ncontent-length: 0\r\n\r\n"
    ),
    "a header's value": HEAD + b"a:" + b"x" * 1_000_000,
    "a header's name": HEAD + b"x" * 1_000_000,
    "a reason": b"HTTP/1.1 200 " + b"x" * 1_000_000,
    "informational answers": b"HTTP/1.1 102 P\r\n\r\n" * 50_000 + OK,
    "headers of informational answers": b"HTTP/1.1 103 P\r\n" + b"a:b\r\n" * 200_000 + b"\r\n" + OK,
}


@pytest.mark.parametrize("packet_bytes", [1, 7, 1400, 250_000])
@pytest.mark.parametrize("what", TOO_MUCH)
def test_only_bodies_are_unlimited(what: str, packet_bytes: int) -> None:
    """The exchange fails after the limits and at most two more packets."""
    with pytest.raises(httpx.RemoteProtocolError) as failed:
        exchange(TOO_MUCH[what], packet_bytes)
    assert failed.value.args[-1] <= MAX_HEAD_BYTES + 2 * MAX_FRAMING_BYTES + 2 * packet_bytes


@pytest.mark.parametrize("packet_bytes", [1, 13, 250_000])
@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n" + OK,
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n" + OK,
        b"HTTP/1.1 103 Early Hints\r\ncontent-length: 5\r\n\r\nhello" + OK,
        b"HTTP/1.1 103 Early Hints\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n" + OK,
    ],
)
def test_informational_responses_have_neither_body_nor_upgrade(
    answer: bytes, packet_bytes: int
) -> None:
    """An upgrade, or a body before the response, is an error."""
    with pytest.raises(httpx.RemoteProtocolError):
        exchange(answer, packet_bytes)


@pytest.mark.parametrize("packet_bytes", [1, 13, 250_000])
@pytest.mark.parametrize(
    "framing",
    [
        b"content-length: 5\r\n\r\nhello",
        b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    ],
)
def test_body_after_status_204_is_dropped(framing: bytes, packet_bytes: int) -> None:
    """A client would read it as its next response."""
    answer = b"HTTP/1.1 204 No Content\r\n" + framing
    assert exchange(answer, packet_bytes)[:2] == (204, b"")


@pytest.mark.parametrize("packet_bytes", [1, 13, 250_000])
def test_responses_within_the_limits_are_read(packet_bytes: int) -> None:
    """Many headers, hints, tiny chunks and large trailers are accepted."""
    answer = (
        b"HTTP/1.1 102 Processing\r\n\r\n" * MAX_INFORMATIONAL
        + HEAD
        + b"x-header: y\r\n" * (MAX_HEADERS - 1)
        + b"transfer-encoding: chunked\r\n\r\n"
        + b"00000001;sha=0\r\nx\r\n" * 100
        + b"0\r\ntrailer: "
        + b"y" * (MAX_FRAMING_BYTES - 1000)
        + b"\r\n\r\n"
    )
    assert exchange(answer, packet_bytes)[:2] == (200, b"x" * 100)


def test_large_body_is_read_in_parts() -> None:
    """A read returns at most 64 KB, so that other requests are served in between."""
    size = 250_000

    async def run() -> list[int]:
        connection = Connection()
        await connection.send(b"", b"", None)
        connection.data_received(HEAD + b"content-length: %d\r\n\r\n" % size + bytes(size))
        await connection.read_head()
        sizes = []
        while part := await connection.read():
            sizes.append(len(part))
        return sizes

    sizes = asyncio.run(run())
    assert (sum(sizes), max(sizes)) == (size, 64 * 1024)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=40), st.integers(0, 20)), max_size=20),
    st.lists(st.integers(1, 40), min_size=1),
)
def test_packet_boundaries_do_not_matter(chunks: list[tuple[bytes, int]], cuts: list[int]) -> None:
    """A chunked body is the same however it is split."""
    framed = b"".join(b"%x;e%s\r\n%s\r\n" % (len(c), b"e" * n, c) for c, n in chunks)
    data = CHUNKED + framed + b"0\r\na: b\r\n\r\n"

    async def run() -> tuple[int, bytes]:
        connection, start = Connection(), 0
        await connection.send(b"", b"", None)
        while start < len(data):
            for cut in cuts:
                connection.data_received(data[start : start + cut])
                start += cut
        return await read(connection)

    assert asyncio.run(run()) == (200, b"".join(chunk for chunk, _ in chunks))


class Parts:
    """A body that arrives in parts of a given size."""

    def __init__(self, data: bytes, size: int) -> None:
        self._data = data
        self._size = size
        self.position = 0

    async def read(self) -> bytes:
        """Return the next part."""
        part = self._data[self.position : self.position + self._size]
        self.position += len(part)
        return part


async def iterate(parts: Parts, limit_bytes: int | None = None) -> list[bytes]:
    """Return the parts of a decompressed body, up to a limit."""
    body, found, size = Decompressor(parts.read), [], 0
    while part := await body.read():
        found.append(part)
        size += len(part)
        if limit_bytes is not None and size >= limit_bytes:
            break
    return found


PACKERS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress}


@settings(deadline=None)
@given(
    st.binary(max_size=300), st.integers(0, 5000), st.integers(1, 500), st.sampled_from([*PACKERS])
)
def test_any_body_is_decompressed_however_it_is_split(
    data: bytes, times: int, size: int, coding: str
) -> None:
    """The result is the original, in parts of at most 64 KB."""
    packed = PACKERS[coding](data * times)
    found = asyncio.run(iterate(Parts(packed, size)))
    assert b"".join(found) == data * times
    assert max(map(len, found), default=0) <= MAX_PART_BYTES


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=300), st.integers(1, 500), st.data())
def test_incomplete_or_overlong_body_is_an_error(
    data: bytes, size: int, draw: st.DataObject
) -> None:
    """An end that comes too early is an error wherever it is, and so is data after the end."""
    packed = gzip.compress(data)
    cut = draw.draw(st.integers(1, len(packed) - 1))
    for damaged in (packed[:cut], packed + packed[:cut]):
        with pytest.raises(httpx.DecodingError):
            asyncio.run(iterate(Parts(damaged, size)))


@settings(deadline=None)
@given(st.binary(max_size=200), st.integers(1, 50))
def test_any_bytes_are_decompressed_or_refused(data: bytes, size: int) -> None:
    """No other error is raised."""
    for start in (b"", b"\x1f\x8b\x08\0", b"\x78\x9c"):
        with contextlib.suppress(httpx.DecodingError):
            asyncio.run(iterate(Parts(start + data, size)))


def test_no_more_is_decompressed_than_is_read() -> None:
    """Of a body that would become 100 MB, the first megabyte takes a few kilobytes."""
    packed = gzip.compress(bytes(100_000_000))
    parts = Parts(packed, 65536)
    tracemalloc.start()
    found = asyncio.run(iterate(parts, 1_000_000))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sum(map(len, found)) < 1_100_000
    assert peak_bytes < 2_000_000
    assert parts.position == 65536


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ([(b"content-encoding", b"gzip, gzip")], ["gzip", "gzip"]),
        ([(b"content-encoding", b"GZIP"), (b"content-encoding", b" br ")], ["gzip", "br"]),
        ([(b"content-encoding", b"identity,, ,identity")], []),
        ([(b"transfer-encoding", b"gzip, chunked")], ["gzip"]),
        ([(b"transfer-encoding", b"Chunked"), (b"x", b"gzip")], []),
    ],
)
def test_all_codings_are_found(headers: list[tuple[bytes, bytes]], found: list[str]) -> None:
    """Codings count in all header lines, in any case, and also as transfer codings."""
    assert read_codings(headers) == found
