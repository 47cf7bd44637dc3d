"""The connections to one upstream, direct or through a proxy.

httpx's errors are the interface for what can go wrong. Its own transport is not used, not even for
proxies: it reads an event at a time without a pause, so that 64 KB of informational answers stall
the event loop for 0.7 s, and there may be any number of them.
"""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
import time
import urllib.request
from collections import deque
from dataclasses import dataclass
from functools import lru_cache

import aiohappyeyeballs
import httpx

from router_service.core.addresses import check_http_address, check_proxy_address
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
class HttpRequest:
    """A request as it is sent; `Host` and the body's length are added."""

    method: str
    address: Address
    headers: RawHeaders
    body: bytes
    timeouts: Timeouts
    needs_new_connection: bool = False
    """Whether a kept connection will not do: the upstream may be closing it, and if it does, nobody
    knows whether it acted on the request."""

    def all_headers(self) -> RawHeaders:
        """Return the headers with those that belong to the connection."""
        length = (b"content-length", b"%d" % len(self.body))
        has_length = self.body or self.method in {"POST", "PUT", "PATCH"}
        return [(b"host", self.address.host), *self.headers, *((length,) if has_length else ())]


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy, by which an upstream is reached (RFC 9110, section 3.7)."""

    url: httpx.URL

    @classmethod
    def at(cls, address: str) -> Proxy:
        """Return the proxy at an address; raises ValueError if the address is invalid."""
        return cls(httpx.URL(check_proxy_address(address)))

    @property
    def headers(self) -> RawHeaders:
        """Return the credentials in the proxy's address (RFC 7617)."""
        if not self.url.userinfo:
            return []
        login = f"{self.url.username}:{self.url.password}".encode()
        return [(b"proxy-authorization", b"Basic " + base64.b64encode(login))]


def transport_to(origin: str, tls: ssl.SSLContext, max_connections: int) -> Transport:
    """Return the connections to an upstream, through a proxy if the environment names one.

    Raises httpx.UnsupportedProtocol for an address, or a proxy's, that parsers read differently.
    """
    try:
        check_http_address(origin)
        url = httpx.URL(origin)
        proxy = _proxy_of(url)
        return Transport(url, tls, max_connections, Proxy.at(proxy) if proxy else None)
    except ValueError as exc:
        raise httpx.UnsupportedProtocol(str(exc)) from exc


def _proxy_of(origin: httpx.URL) -> str | None:
    """Return the proxy that the environment names for an address, as curl and httpx read it."""
    proxies = urllib.request.getproxies()
    proxy = proxies.get(origin.scheme) or proxies.get("all")
    if not proxy or urllib.request.proxy_bypass(origin.netloc.decode("ascii")):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


class Transport:
    """Sends requests to one origin over at most `max_connections`; keeps each for the next request.

    Raises httpx.TransportError. Bounds connecting, writing and waiting for a connection by a
    request's timeouts; whoever reads the answer has to bound that.
    """

    def __init__(
        self,
        origin: httpx.URL,
        tls: ssl.SSLContext,
        max_connections: int,
        proxy: Proxy | None = None,
    ) -> None:
        """Have no connection yet."""
        self._origin = origin
        self._tls = tls
        self._proxy = proxy
        # A proxy reads requests for http itself; for https it only opens a tunnel.
        self._forwarder = proxy if origin.scheme != "https" else None
        self._free = asyncio.Semaphore(max_connections)
        self._idle: deque[Connection] = deque()
        self._is_closed = False

    async def send(self, request: HttpRequest) -> HttpResponse:
        """Send a request, and return the answer once its headers are there."""
        head = _head_of(request, self._forwarder)
        connection = await self._acquire(request.timeouts, is_new=request.needs_new_connection)
        try:
            await connection.send(head, request.body, request.timeouts.write_s)
            await connection.read_head()
        except BaseException:
            self.release(connection)
            raise
        return HttpResponse(self, connection)

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

    async def _acquire(self, timeouts: Timeouts, *, is_new: bool) -> Connection:
        await self._take_turn(timeouts.pool_s)
        try:
            if is_new and self._idle:
                self._idle.popleft().close()  # the new one will be kept in its place
            kept = None if is_new else self._kept()
            return kept or await self._connect(timeouts.connect_s)
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
        if self._proxy is None:
            return await self._connected_to(self._origin)
        if self._proxy.url.scheme not in {"http", "https"}:
            raise httpx.ProxyError(f"the proxy's scheme {self._proxy.url.scheme!r} is not http")
        connection = await self._connected_to(self._proxy.url)
        if self._forwarder is not None:
            return connection
        try:
            return await self._tunnel(connection, self._proxy)
        except BaseException:
            connection.close()
            raise

    async def _connected_to(self, url: httpx.URL) -> Connection:
        loop = asyncio.get_running_loop()
        host = _host_of(url)
        found = await loop.getaddrinfo(host, _port_of(url), type=socket.SOCK_STREAM)
        chosen = await aiohappyeyeballs.start_connection(
            found, happy_eyeballs_delay=HAPPY_EYEBALLS_S, interleave=1
        )
        tls, name = (self._tls, host) if url.scheme == "https" else (None, None)
        _, connection = await loop.create_connection(
            Connection, sock=chosen, ssl=tls, server_hostname=name
        )
        return connection

    async def _tunnel(self, connection: Connection, proxy: Proxy) -> Connection:
        """Let the proxy connect to the origin (RFC 9110, section 9.3.6), and begin TLS with it."""
        authority = self._origin.netloc + (b"" if self._origin.port else b":443")
        lines = [b"CONNECT " + authority + b" HTTP/1.1", b"host: " + authority]
        lines += [name + b": " + value for name, value in proxy.headers]
        try:
            await connection.send(b"\r\n".join((*lines, b"", b"")), b"", None)
            await connection.read_head()
        except httpx.TransportError as exc:
            raise httpx.ProxyError(str(exc)) from exc
        if connection.status // 100 != 2:
            raise httpx.ProxyError(f"the proxy answered with status {connection.status}")
        return await connection.with_tls(self._tls, _host_of(self._origin))


class HttpResponse:
    """An answer whose status and headers are there; names of headers are in lower case."""

    def __init__(self, transport: Transport, connection: Connection) -> None:
        self.status, self.headers = connection.status, connection.headers
        self._transport = transport
        self._connection: Connection | None = connection

    async def read(self) -> bytes:
        """Return the next part of the body; empty at its end."""
        return await self._connection.read() if self._connection else b""

    async def aclose(self) -> None:
        """Let go of the connection, which is closed if the body was not read to its end."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._transport.release(connection)


def _host_of(url: httpx.URL) -> str:
    return url.raw_host.decode("ascii").strip("[]")


def _port_of(url: httpx.URL) -> int:
    return url.port or (443 if url.scheme == "https" else 80)


def _head_of(request: HttpRequest, forwarder: Proxy | None) -> bytes:
    """Return the request line and the headers; raises LocalProtocolError for what is not HTTP."""
    target, headers = request.address.target, request.all_headers()
    if forwarder is not None:
        target = b"http://" + request.address.host + target
        headers += forwarder.headers
    lines = [request.method.encode("ascii") + b" " + target + b" HTTP/1.1"]
    lines += [name + b": " + value for name, value in headers]
    head = b"\r\n".join((*lines, b"", b""))
    if not head.count(b"\r") == head.count(b"\n") == len(lines) + 1 or b"\0" in head:
        raise httpx.LocalProtocolError("a header has a control character")
    return head
