"""The connections to one upstream: HTTP/1.1 of our own, or httpx's through a proxy.

httpx stays the interface in what can go wrong: both raise its errors.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
import urllib.request
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import aiohappyeyeballs
import httpx

from router_service.settings import Timeouts
from router_service.upstream.connection import Connection, RawHeaders

KEEP_ALIVE_S = 30.0
"""Providers' load balancers close idle connections after 60 s or more."""

HAPPY_EYEBALLS_S = 0.25
"""How long an address is tried before the next one is tried beside it (RFC 8305, section 5)."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a request goes, as it is written in one."""

    url: httpx.URL
    host: bytes
    target: bytes
    """Path and query."""

    @classmethod
    @lru_cache(maxsize=64)
    def of(cls, url: str) -> Address:
        """Read an address; kept, for that takes httpx 0.03 ms."""
        parsed = httpx.URL(url)
        return cls(parsed, parsed.netloc, parsed.raw_path)


@dataclass(frozen=True, slots=True)
class Outbound:
    """A request as it is sent; `Host` and the body's length are added."""

    method: str
    address: Address
    headers: RawHeaders
    body: bytes
    timeouts: Timeouts

    def all_headers(self) -> RawHeaders:
        """Return the headers with those that belong to the connection."""
        length = (b"content-length", b"%d" % len(self.body))
        has_length = self.body or self.method in {"POST", "PUT", "PATCH"}
        return [(b"host", self.address.host), *self.headers, *((length,) if has_length else ())]


class Inbound(Protocol):
    """An answer whose status and headers are there; names of headers are in lower case."""

    @property
    def status(self) -> int:
        """HTTP's."""

    @property
    def headers(self) -> RawHeaders:
        """All of them, in order."""

    async def read(self) -> bytes:
        """Return the next part of the body; empty at its end."""

    async def aclose(self) -> None:
        """Let go of the connection, which is closed where the body was not read to its end."""


class Transport(Protocol):
    """Sends requests to one origin; raises httpx.TransportError."""

    async def send(self, request: Outbound) -> Inbound:
        """Send a request, and return the answer once its headers are there."""

    async def aclose(self) -> None:
        """Close what is idle now, and the rest as it is let go."""


def transport_to(origin: str, tls: ssl.SSLContext, max_connections: int) -> Transport:
    """Return the connections to an upstream: httpx's own through a proxy, else ours."""
    url = httpx.URL(origin)
    proxy = _proxy_of(url)
    if proxy is None:
        return PooledTransport(url, tls, max_connections)
    limits = httpx.Limits(
        max_connections=max_connections,
        max_keepalive_connections=max_connections,
        keepalive_expiry=KEEP_ALIVE_S,
    )
    return ProxiedTransport(httpx.AsyncHTTPTransport(verify=tls, limits=limits, proxy=proxy))


def _proxy_of(origin: httpx.URL) -> str | None:
    """Return the proxy that the environment names for an address, as curl and httpx read it."""
    proxies = urllib.request.getproxies()
    proxy = proxies.get(origin.scheme) or proxies.get("all")
    if not proxy or urllib.request.proxy_bypass(origin.netloc.decode("ascii")):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


class PooledTransport:
    """HTTP/1.1 over at most `max_connections`, each kept for the next request.

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

    async def send(self, request: Outbound) -> Inbound:
        """Send a request, and return the answer once its headers are there."""
        head = _head_of(request)
        connection = await self._acquire(request.timeouts)
        try:
            await connection.send(head, request.body, request.timeouts.write_s)
            await connection.read_head()
        except BaseException:
            self.release(connection)
            raise
        return _Pooled(self, connection)

    async def aclose(self) -> None:
        """Close what is idle now, and the rest as it is let go."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().close()

    def release(self, connection: Connection) -> None:
        """Keep a connection for another request, or close it where it is of no use for one."""
        self._free.release()
        now_s = time.monotonic()
        while self._idle and self._idle[0].idle_since_s < now_s - KEEP_ALIVE_S:
            self._idle.popleft().close()
        if connection.is_reusable and not self._is_closed:
            connection.idle_since_s = now_s
            self._idle.append(connection)
        else:
            connection.close()

    async def _acquire(self, timeouts: Timeouts) -> Connection:
        await self._take_turn(timeouts.pool_s)
        try:
            return self._kept() or await self._connect(timeouts.connect_s)
        except BaseException:
            self._free.release()
            raise

    async def _take_turn(self, timeout_s: float) -> None:
        if not self._free.locked():  # without a timer, which costs more than all else here
            await self._free.acquire()
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._free.acquire()
        except TimeoutError as exc:
            raise httpx.PoolTimeout("no connection was free in time") from exc

    def _kept(self) -> Connection | None:
        """Return the connection that was used last: those that are not needed grow old."""
        oldest_s = time.monotonic() - KEEP_ALIVE_S
        while self._idle:
            connection = self._idle.pop()
            if connection.idle_since_s >= oldest_s and not connection.is_stale:
                return connection
            connection.close()
        return None

    async def _connect(self, timeout_s: float) -> Connection:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._connected()
        except TimeoutError as exc:
            raise httpx.ConnectTimeout("no connection was made in time") from exc
        except (OSError, UnicodeError) as exc:  # a name that no host can have is the latter
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


class _Pooled:
    """An answer that comes over a connection of the pool's."""

    def __init__(self, transport: PooledTransport, connection: Connection) -> None:
        self.status, self.headers = connection.status, connection.headers
        self._transport = transport
        self._connection: Connection | None = connection

    async def read(self) -> bytes:
        return await self._connection.read() if self._connection else b""

    async def aclose(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._transport.release(connection)


class ProxiedTransport:
    """Requests through a proxy, which httpx speaks to."""

    def __init__(self, transport: httpx.AsyncBaseTransport) -> None:
        """Send through a transport of httpx's."""
        self._transport = transport

    async def send(self, request: Outbound) -> Inbound:
        """Send a request, and return the answer once its headers are there."""
        times = request.timeouts
        timeout = httpx.Timeout(
            connect=times.connect_s,
            read=max(times.first_byte_s, times.idle_s),
            write=times.write_s,
            pool=times.pool_s,
        )
        response = await self._transport.handle_async_request(
            httpx.Request(
                request.method,
                request.address.url,
                headers=request.all_headers(),
                stream=httpx.ByteStream(request.body),
                extensions={"timeout": timeout.as_dict()},
            )
        )
        return _Proxied(response)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._transport.aclose()


class _Proxied:
    """An answer that comes through httpx."""

    def __init__(self, response: httpx.Response) -> None:
        self.status = response.status_code
        self.headers = [(name.lower(), value) for name, value in response.headers.raw]
        self._response = response
        self._parts: AsyncIterator[bytes] = aiter(response.aiter_raw())

    async def read(self) -> bytes:
        return await anext(self._parts, b"")

    async def aclose(self) -> None:
        await self._response.aclose()


def _head_of(request: Outbound) -> bytes:
    """Return the request line and the headers; raises LocalProtocolError for what is not HTTP."""
    lines = [request.method.encode("ascii") + b" " + request.address.target + b" HTTP/1.1"]
    lines += [name + b": " + value for name, value in request.all_headers()]
    head = b"\r\n".join((*lines, b"", b""))
    if not head.count(b"\r") == head.count(b"\n") == len(lines) + 1 or b"\0" in head:
        raise httpx.LocalProtocolError("a header has a control character")
    return head
