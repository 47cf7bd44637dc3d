"""The pool of connections to one upstream, direct or through a proxy.

Failures are raised as httpx's errors. httpx's own transport is not used, not even for proxies: it
reads one event at a time without yielding, so that 64 KB of informational responses stall the event
loop for 0.7 s, and it does not limit their number.
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
"""How long one IP address is tried before the next one is tried in parallel (RFC 8305, section
5)."""


@dataclass(frozen=True, slots=True)
class Address:
    """A URL with the parts that a request line needs."""

    url: httpx.URL
    host: bytes
    target: bytes
    """Path and query."""

    @classmethod
    @lru_cache(maxsize=64)
    def of(cls, url: str) -> Address:
        """Parse a URL. The result is cached, because httpx takes 0.03 ms to parse one."""
        parsed = httpx.URL(url)
        return cls(parsed, parsed.netloc, parsed.raw_path)


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request to send. The transport adds `Host` and the body's length."""

    method: str
    address: Address
    headers: RawHeaders
    body: bytes
    timeouts: Timeouts
    needs_new_connection: bool = False
    """Whether a kept-alive connection must not be used. The upstream may be closing such a
    connection, and if it does, it is unknown whether it acted on the request."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy (RFC 9110, section 3.7)."""

    url: httpx.URL

    @classmethod
    def at(cls, address: str) -> Proxy:
        """Return the proxy at an address, or raise ValueError if the address is invalid."""
        return cls(httpx.URL(check_proxy_address(address)))

    @property
    def headers(self) -> RawHeaders:
        """Return the credentials in the proxy's address as a header (RFC 7617)."""
        if not self.url.userinfo:
            return []
        login = f"{self.url.username}:{self.url.password}".encode()
        return [(b"proxy-authorization", b"Basic " + base64.b64encode(login))]


def transport_to(origin: str, tls: ssl.SSLContext, max_connections: int) -> Transport:
    """Return the connections to an upstream, through a proxy if the environment names one.

    The environment is read as curl and httpx read it. Raise httpx.UnsupportedProtocol if the
    address of the upstream or of the proxy is invalid, or one that parsers read differently.
    """
    try:
        check_http_address(origin)
        url = httpx.URL(origin)
        proxies = urllib.request.getproxies()
        proxy = proxies.get(url.scheme) or proxies.get("all")
        if not proxy or urllib.request.proxy_bypass(url.netloc.decode("ascii")):
            return Transport(url, tls, max_connections)
        address = proxy if "://" in proxy else f"http://{proxy}"
        return Transport(url, tls, max_connections, Proxy.at(address))
    except ValueError as exc:
        raise httpx.UnsupportedProtocol(str(exc)) from exc


class Transport:
    """Up to `max_connections` connections to one origin, which are kept alive for later requests.

    It raises httpx.TransportError. A request's timeouts bound connecting, writing and waiting for
    a connection. The caller has to bound how long it reads.
    """

    def __init__(
        self,
        origin: httpx.URL,
        tls: ssl.SSLContext,
        max_connections: int,
        proxy: Proxy | None = None,
    ) -> None:
        self._origin = origin
        self._tls = tls
        self._proxy = proxy
        # A proxy reads http requests itself. For https it only opens a tunnel.
        self._forwarder = proxy if origin.scheme != "https" else None
        self._free = asyncio.Semaphore(max_connections)
        self._idle: deque[Connection] = deque()
        self._is_closed = False

    async def send(self, request: HttpRequest) -> Connection:
        """Send a request and return its connection once the response's headers have arrived.

        The caller reads the response from the connection and then passes it to `release`.
        """
        head = _encode_head(request, self._forwarder)
        connection = await self._acquire(request.timeouts, is_new=request.needs_new_connection)
        try:
            await connection.send(head, request.body, request.timeouts.write_s)
            await connection.read_head()
        except BaseException:
            self.release(connection)
            raise
        return connection

    def release(self, connection: Connection) -> None:
        """Keep a connection for another request, or close it if it cannot be reused."""
        self._free.release()
        now_s = time.monotonic()
        while self._idle and self._idle[0].idle_since_s < now_s - KEEP_ALIVE_S:
            self._idle.popleft().close()
        if connection.is_reusable and not self._is_closed:
            connection.idle_since_s = now_s
            self._idle.append(connection)
        else:
            connection.close()

    async def aclose(self) -> None:
        """Close the idle connections now, and the others when they are released."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().close()

    async def _acquire(self, timeouts: Timeouts, *, is_new: bool) -> Connection:
        """Return an idle connection or a new one, as soon as one is allowed."""
        if not self._free.locked():  # without a timer, which would cost more than all the rest
            await self._free.acquire()
        else:
            try:
                async with asyncio.timeout(timeouts.pool_s):
                    await self._free.acquire()
            except TimeoutError as exc:
                raise httpx.PoolTimeout("no connection was free in time") from exc
        try:
            if is_new and self._idle:
                self._idle.popleft().close()  # the new connection will be kept in its place
            oldest_s = time.monotonic() - KEEP_ALIVE_S
            # The connection that was used last comes first, so that surplus ones expire.
            while self._idle and not is_new:
                connection = self._idle.pop()
                if connection.idle_since_s >= oldest_s and not connection.is_stale:
                    return connection
                connection.close()
            return await self._connect(timeouts.connect_s)
        except BaseException:
            self._free.release()
            raise

    async def _connect(self, timeout_s: float) -> Connection:
        try:
            async with asyncio.timeout(timeout_s):
                if self._proxy is None:
                    return await self._open(self._origin)
                scheme = self._proxy.url.scheme
                if scheme not in {"http", "https"}:
                    raise httpx.ProxyError(f"the proxy's scheme {scheme!r} is not http")
                connection = await self._open(self._proxy.url)
                if self._forwarder is not None:
                    return connection
                try:
                    return await self._open_tunnel(connection, self._proxy)
                except BaseException:
                    connection.close()
                    raise
        except TimeoutError as exc:
            raise httpx.ConnectTimeout("no connection was made in time") from exc
        except (OSError, UnicodeError) as exc:  # UnicodeError: a name that no host can have
            raise httpx.ConnectError(str(exc)) from exc

    async def _open(self, url: httpx.URL) -> Connection:
        loop = asyncio.get_running_loop()
        host, is_https = _host_of(url), url.scheme == "https"
        port = url.port or (443 if is_https else 80)
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        chosen = await aiohappyeyeballs.start_connection(
            found, happy_eyeballs_delay=HAPPY_EYEBALLS_S, interleave=1
        )
        tls, name = (self._tls, host) if is_https else (None, None)
        _, connection = await loop.create_connection(
            Connection, sock=chosen, ssl=tls, server_hostname=name
        )
        return connection

    async def _open_tunnel(self, connection: Connection, proxy: Proxy) -> Connection:
        """Have the proxy connect to the origin (RFC 9110, section 9.3.6), and start TLS."""
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
        return await connection.start_tls(self._tls, _host_of(self._origin))


def _host_of(url: httpx.URL) -> str:
    return url.raw_host.decode("ascii").strip("[]")


def _encode_head(request: HttpRequest, forwarder: Proxy | None) -> bytes:
    """Return the request line and headers. Raise LocalProtocolError if they are not valid HTTP."""
    target = request.address.target
    headers = [(b"host", request.address.host), *request.headers]
    if request.body or request.method in {"POST", "PUT", "PATCH"}:
        headers.append((b"content-length", b"%d" % len(request.body)))
    if forwarder is not None:
        target = b"http://" + request.address.host + target
        headers += forwarder.headers
    lines = [request.method.encode("ascii") + b" " + target + b" HTTP/1.1"]
    lines += [name + b": " + value for name, value in headers]
    head = b"\r\n".join((*lines, b"", b""))
    if not head.count(b"\r") == head.count(b"\n") == len(lines) + 1 or b"\0" in head:
        raise httpx.LocalProtocolError("a header contains a control character")
    return head
