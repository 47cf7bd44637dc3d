"""Limits of one client connection: headers, trailers, time, memory and pipelined requests."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest
from starlette.types import Receive, Scope, Send

from router_service.http.protocol import (
    ConnectionLimits,
    protocol_with_limits,
)
from tests.serving import connected, served, wait_for

LIMITS = ConnectionLimits(
    max_header_bytes=8000, header_timeout_s=30, write_timeout_s=0.3, linger_s=0.2
)
CHUNK = bytes(16 * 1024)
GET = b"GET / HTTP/1.1\r\nhost: localhost\r\n"


class Echo:
    """App that answers each path in its own way, and counts requests."""

    def __init__(self) -> None:
        self.sent_bytes = 0
        self.served = 0
        self.cancelled = 0
        self.go_on = threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        self.served += 1
        if scope["path"] == "/wait":
            gone = asyncio.ensure_future(_left(receive))
            go_on = asyncio.ensure_future(asyncio.to_thread(self.go_on.wait, 30))
            await asyncio.wait((gone, go_on), return_when=asyncio.FIRST_COMPLETED)
            gone.cancel()
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
    """Return the app."""
    return Echo()


@pytest.fixture(scope="module")
def url(echo: Echo) -> Iterator[str]:
    """Serve the app with narrow limits."""
    with served(echo, http=protocol_with_limits(LIMITS)) as address:
        yield address


def read_all(connection: socket.socket) -> bytes:
    """Return all bytes until the server closes the connection."""
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def refusal(answer: bytes) -> tuple[int, str]:
    """Return the status and OpenAI's error code of a refusal."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head
    return int(head.split()[1]), json.loads(body)["error"]["code"]


def test_client_that_reads_nothing_is_disconnected(url: str, echo: Echo) -> None:
    """Little of its answer is buffered, and the connection is closed after the time limit."""
    before, cancelled = echo.sent_bytes, echo.cancelled
    with connected(url, GET.replace(b"/", b"/endless", 1) + b"\r\n"):
        wait_for(lambda: echo.cancelled > cancelled, "it is cut off")
        # The kernels' buffers between the two sockets are most of it: up to 6 MB on Linux.
        assert echo.sent_bytes - before < 16_000_000


WAIT = GET.replace(b"GET /", b"GET /wait") + b"\r\n"


def test_pipelined_requests_begin_one_by_one(url: str, echo: Echo) -> None:
    """Requests of one packet begin only when the previous one is answered."""
    echo.go_on.clear()
    before = echo.served
    with connected(url, WAIT + (GET + b"\r\n") * 50) as connection:
        wait_for(lambda: echo.served == before + 1, "the first is being answered")
        time.sleep(0.05)  # time in which a second one would begin
        assert echo.served == before + 1
        echo.go_on.set()
        answers = b""
        while answers.count(b"HTTP/1.1 200") < 51:
            answers += connection.recv(65536)
    assert echo.served == before + 51


def test_longest_idle_connection_is_closed_at_limit(
    echo: Echo, caplog: pytest.LogCaptureFixture
) -> None:
    """At the limit the longest idle connection is closed, and one log line reports it."""
    limits = replace(LIMITS, max_connections=3)
    with served(echo, http=protocol_with_limits(limits)) as url, ExitStack() as stack:
        echo.go_on.clear()
        before = echo.served
        busy = stack.enter_context(connected(url, WAIT))
        wait_for(lambda: echo.served == before + 1, "a request is being answered")
        idle = [stack.enter_context(connected(url)) for _ in range(5)]
        for connection in idle[:3]:
            assert read_all(connection) == b""
        for connection in idle[3:]:
            connection.sendall(GET + b"\r\n")
            assert connection.recv(1000).endswith(b"ok")
        echo.go_on.set()
        assert busy.recv(1000).endswith(b"ok")
    lines = [record.getMessage() for record in caplog.records if "connection limit" in record.msg]
    assert len(lines) == 1
    assert "limit=3" in lines[0]


def test_connection_gets_503_without_idle_ones(echo: Echo) -> None:
    """If no connection is idle, a further connection gets 503 and is closed."""
    with served(echo, http=protocol_with_limits(replace(LIMITS, max_connections=1))) as url:
        echo.go_on.clear()
        before = echo.served
        with connected(url, WAIT) as busy:
            wait_for(lambda: echo.served == before + 1, "a request is being answered")
            with connected(url) as connection:
                assert refusal(read_all(connection)) == (503, "overloaded")
            echo.go_on.set()
            assert busy.recv(1000).endswith(b"ok")
