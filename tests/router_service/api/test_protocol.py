"""What a connection may use: headers, time, and answers that nobody reads."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from starlette.types import Receive, Scope, Send

from router_service.api.corking import CorkedTransport
from router_service.api.protocol import Limits, bounded
from tests.serving import served, wait_for

LIMITS = Limits(max_header_bytes=8000, header_timeout_s=0.3, write_timeout_s=0.3, linger_s=0.2)
CHUNK = bytes(16 * 1024)
GET = b"GET / HTTP/1.1\r\nhost: localhost\r\n"


class Echo:
    """Answers each path in its own way, and counts."""

    def __init__(self) -> None:
        self.sent_bytes = 0
        self.served = 0
        self.cancelled = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        if scope["type"] == "lifespan":
            return
        self.served += 1
        if scope["path"] == "/slow":
            await asyncio.sleep(3 * LIMITS.header_timeout_s)
        headers = [(b"content-length", b"2")] if scope["path"] != "/endless" else []
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if scope["path"] != "/endless":
            await send({"type": "http.response.body", "body": b"ok"})
            return
        gone = asyncio.ensure_future(_left(receive))
        while not gone.done():
            await send({"type": "http.response.body", "body": CHUNK, "more_body": True})
            self.sent_bytes += len(CHUNK)
            await asyncio.sleep(0)
        self.cancelled += 1


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


@pytest.fixture(scope="module")
def echo() -> Echo:
    """Return the app that is served."""
    return Echo()


@pytest.fixture(scope="module")
def url(echo: Echo) -> Iterator[str]:
    """Serve it within narrow limits."""
    with served(echo, http=bounded(LIMITS)) as address:
        yield address


@contextmanager
def connected(url: str, first: bytes = b"") -> Iterator[socket.socket]:
    """Yield a connection on which some bytes were sent."""
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), timeout=5) as connection:
        connection.sendall(first)
        yield connection


def read_all(connection: socket.socket) -> bytes:
    """Return all that comes until the other side hangs up."""
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def refusal(answer: bytes) -> tuple[int, str]:
    """Return the status and OpenAI's code of a refusal."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head
    return int(head.split()[1]), json.loads(body)["error"]["code"]


@pytest.mark.parametrize(
    "parts",
    [
        [GET + b"a: " + b"x" * 9000 + b"\r\n\r\n"],
        [GET, *[b"a" * 1000] * 9],
        [GET, *[b"%d: 1\r\n" % n for n in range(2000)]],
        [b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\n\r\n"],
    ],
    ids=["one part", "never ends", "many", "address"],
)
def test_large_headers_are_refused(url: str, parts: list[bytes]) -> None:
    """Headers and addresses beyond the limit are 431, in one part or in many, complete or not."""
    with connected(url) as connection:
        for part in parts:
            connection.sendall(part)
        assert refusal(read_all(connection)) == (431, "headers_too_large")


def test_slow_headers_are_refused(url: str) -> None:
    """A client that sends its headers bit by bit gets 408 when its time is up."""
    with connected(url, GET) as connection:
        connection.settimeout(0.05)
        answer = b""
        for _ in range(100):
            try:
                answer += connection.recv(65536)
                break
            except TimeoutError:
                connection.sendall(b"a: b\r\n")
        connection.settimeout(5)
        assert refusal(answer + read_all(connection)) == (408, "request_timeout")


def test_a_connection_without_a_request_is_closed(url: str) -> None:
    """Who connects and sends nothing is let go."""
    with connected(url) as connection:
        assert read_all(connection) == b""


@pytest.mark.parametrize("first", [b"", GET + b"\r\n"], ids=["new", "kept"])
def test_blank_lines_keep_no_connection(url: str, first: bytes) -> None:
    """The blank line that parsers pass over before a request counts as its beginning."""
    with connected(url, first) as connection:
        if first:
            assert connection.recv(1000).endswith(b"ok")
        connection.sendall(b"\r\n")
        assert refusal(read_all(connection)) == (408, "request_timeout")


def test_no_http_is_refused_in_openais_form(url: str) -> None:
    """What is no HTTP gets 400, and the connection ends."""
    with connected(url, b"hello\r\n\r\n") as connection:
        assert refusal(read_all(connection)) == (400, "invalid_http")


def test_a_slow_answer_is_no_slow_request(url: str) -> None:
    """The bound is for the client: an answer that takes longer than it comes whole."""
    with connected(url, GET.replace(b"/", b"/slow", 1) + b"\r\n") as connection:
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")


def test_a_body_that_goes_on_after_the_answer_is_cut_off(url: str) -> None:
    """A client that still sends what was answered already cannot keep the connection."""
    head = GET.replace(b"GET", b"POST") + b"transfer-encoding: chunked\r\n\r\n"
    with connected(url, head) as connection:
        wait_for(lambda: not _takes(connection, b"1\r\nx\r\n"), "it is cut off")


def _takes(connection: socket.socket, part: bytes) -> bool:
    try:
        connection.sendall(part)
    except ConnectionError:
        return False
    return True


def test_pipelined_requests_are_answered(url: str, echo: Echo) -> None:
    """Several requests in one part are each answered once."""
    before = echo.served
    with connected(url, (GET + b"\r\n") * 3) as connection:
        wait_for(lambda: echo.served == before + 3, "all are served")
        connection.shutdown(socket.SHUT_WR)
        assert read_all(connection).count(b"HTTP/1.1 200") == 3


def test_a_client_that_reads_nothing(url: str, echo: Echo) -> None:
    """It holds back its answer, of which little is kept in memory, and is cut off in the end."""
    before, cancelled = echo.sent_bytes, echo.cancelled
    with connected(url, GET.replace(b"/", b"/endless", 1) + b"\r\n"):
        wait_for(lambda: echo.cancelled > cancelled, "it is cut off")
        # The kernels' buffers between the two sockets are most of it: up to 6 MB on Linux.
        assert echo.sent_bytes - before < 16_000_000


def test_a_client_that_reads_slowly_is_served(url: str, echo: Echo) -> None:
    """One that takes some of its answer in each period is not cut off."""
    cancelled = echo.cancelled
    with connected(url, GET.replace(b"/", b"/endless", 1) + b"\r\n") as connection:
        for _ in range(20):
            time.sleep(LIMITS.write_timeout_s / 5)
            assert connection.recv(1_000_000)
        assert echo.cancelled == cancelled


class Wire(asyncio.Transport):
    """Keeps what is written, each write by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Keep it."""
        self.writes.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        """Say that all is sent."""
        return 0

    def close(self) -> None:
        """Note it."""
        self.writes.append(b"closed")

    def abort(self) -> None:
        """Note it."""
        self.writes.append(b"aborted")


HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


def test_an_answers_head_goes_with_its_first_part() -> None:
    """Head and first part are one write, and later parts are written as they come."""

    async def answer() -> list[bytes]:
        wire = Wire()
        corked = CorkedTransport(wire)
        for data in (HEAD, b"a", b"b", HEAD, b"c"):
            corked.write(data)
        await asyncio.sleep(0)
        return wire.writes

    assert asyncio.run(answer()) == [HEAD + b"a", b"b", HEAD + b"c"]


def test_a_head_waits_for_no_more_than_a_turn_of_the_loop() -> None:
    """A head without a body is sent, before a connection is closed too; an abort loses it."""

    async def answer() -> list[bytes]:
        wire = Wire()
        corked = CorkedTransport(wire)
        corked.write(HEAD)
        assert corked.get_write_buffer_size() == len(HEAD)
        await asyncio.sleep(0)
        corked.write(HEAD)
        corked.close()
        corked.write(HEAD)
        corked.abort()
        await asyncio.sleep(0)
        return wire.writes

    assert asyncio.run(answer()) == [HEAD, HEAD, b"closed", b"aborted"]
