"""The connections to one upstream, beneath httpx: what httpx's own transport does, for less."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import AsyncIterator

import aiohappyeyeballs
import httpx

from router_service.upstream.connection import Connection

KEEP_ALIVE_S = 30.0
"""Providers' load balancers close idle connections after 60 s or more."""

HAPPY_EYEBALLS_S = 0.25
"""How long an address is tried before the next one is tried beside it (RFC 8305, section 5)."""


class PooledTransport(httpx.AsyncBaseTransport):
    """HTTP/1.1 to one origin over at most `max_connections`, kept for the next request.

    A request's timeouts for connecting, writing and the pool are kept; who reads the answer has to
    bound that itself.
    """

    def __init__(self, origin: httpx.URL, tls: ssl.SSLContext, max_connections: int) -> None:
        """Have no connection yet."""
        self._host = origin.raw_host.decode("ascii").strip("[]")
        self._is_tls = origin.scheme == "https"
        self._port = origin.port or (443 if self._is_tls else 80)
        self._tls = tls
        self._free = asyncio.Semaphore(max_connections)
        self._idle: deque[Connection] = deque()
        self._is_closed = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, and return the answer once its headers are there."""
        timeouts: dict[str, float | None] = request.extensions.get("timeout", {})
        head, body = _head_of(request), await request.aread()
        connection = await self._acquire(timeouts)
        try:
            await connection.send(head, body, timeouts.get("write"))
            await connection.read_head()
        except BaseException:
            self.release(connection)
            raise
        stream = _Body(self, connection)
        return httpx.Response(
            connection.status, headers=connection.headers, stream=stream, request=request
        )

    async def aclose(self) -> None:
        """Close what is idle now, and the rest as it is let go."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().close()

    def release(self, connection: Connection) -> None:
        """Keep a connection for another request, or close it where it is of no use for one."""
        self._free.release()
        now_s = asyncio.get_running_loop().time()
        while self._idle and self._idle[0].idle_since_s < now_s - KEEP_ALIVE_S:
            self._idle.popleft().close()
        if connection.is_reusable and not self._is_closed:
            connection.idle_since_s = now_s
            self._idle.append(connection)
        else:
            connection.close()

    async def _acquire(self, timeouts: dict[str, float | None]) -> Connection:
        await self._take_turn(timeouts.get("pool"))
        try:
            return self._kept() or await self._connect(timeouts.get("connect"))
        except BaseException:
            self._free.release()
            raise

    async def _take_turn(self, timeout_s: float | None) -> None:
        if not self._free.locked():  # a timer a request costs more than all else here
            await self._free.acquire()
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._free.acquire()
        except TimeoutError as exc:
            raise httpx.PoolTimeout("no connection was free in time") from exc

    def _kept(self) -> Connection | None:
        """Return the connection that was used last: those that are not needed grow old."""
        oldest_s = asyncio.get_running_loop().time() - KEEP_ALIVE_S
        while self._idle:
            connection = self._idle.pop()
            if connection.idle_since_s >= oldest_s and not connection.is_stale:
                return connection
            connection.close()
        return None

    async def _connect(self, timeout_s: float | None) -> Connection:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._connected()
        except TimeoutError as exc:
            raise httpx.ConnectTimeout("no connection was made in time") from exc
        except OSError as exc:
            raise httpx.ConnectError(str(exc)) from exc

    async def _connected(self) -> Connection:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        chosen = await aiohappyeyeballs.start_connection(
            found, happy_eyeballs_delay=HAPPY_EYEBALLS_S, interleave=1
        )
        tls, name = (self._tls, self._host) if self._is_tls else (None, None)
        _, connection = await loop.create_connection(
            Connection, sock=chosen, ssl=tls, server_hostname=name
        )
        return connection


class _Body(httpx.AsyncByteStream):
    """An answer's body, which lets go of its connection when it is closed."""

    def __init__(self, transport: PooledTransport, connection: Connection) -> None:
        self._transport = transport
        self._connection: Connection | None = connection

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while self._connection is not None and (part := await self._connection.read()):
            yield part

    async def aclose(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._transport.release(connection)


def _head_of(request: httpx.Request) -> bytes:
    """Return the request line and the headers; raises LocalProtocolError for what is not HTTP."""
    lines = [request.method.encode("ascii") + b" " + request.url.raw_path + b" HTTP/1.1"]
    lines += [name + b": " + value for name, value in request.headers.raw]
    head = b"\r\n".join((*lines, b"", b""))
    if not head.count(b"\r") == head.count(b"\n") == len(lines) + 1 or b"\0" in head:
        raise httpx.LocalProtocolError("a header has a control character")
    return head
