"""What an upstream's bytes may cost, however they are split into packets."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router_service.upstream.connection import (
    MAX_FRAMING_BYTES,
    MAX_HEAD_BYTES,
    MAX_HEADERS,
    MAX_INFORMATIONAL,
    Connection,
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
    """Feed an answer in packets until it ends; return status, body, and how much was taken.

    Raises what the exchange raises.
    """

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
def test_nothing_but_a_body_is_endless(what: str, packet_bytes: int) -> None:
    """The exchange fails, and no more is taken than the limits and the last two packets."""
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
def test_informational_answers_have_no_body_and_switch_nothing(
    answer: bytes, packet_bytes: int
) -> None:
    """Neither an upgrade nor a body before the answer is part of the answer."""
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
def test_an_answer_without_content_has_none(framing: bytes, packet_bytes: int) -> None:
    """A body after status 204 is dropped: a client would read it as its next answer."""
    answer = b"HTTP/1.1 204 No Content\r\n" + framing
    assert exchange(answer, packet_bytes)[:2] == (204, b"")


@pytest.mark.parametrize("packet_bytes", [1, 13, 250_000])
def test_what_is_within_the_limits_is_read(packet_bytes: int) -> None:
    """Many headers, hints, tiny chunks and large trailers are no problem."""
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


def test_a_large_body_comes_in_parts() -> None:
    """A reader gets no more than 64 KB at once, so that others are served in between."""
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
def test_packets_do_not_matter(chunks: list[tuple[bytes, int]], cuts: list[int]) -> None:
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
