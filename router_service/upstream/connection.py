"""HTTP/1.1 connections to upstreams (RFC 9112) and their pools, direct or through a proxy.

They are built on httptools and asyncio's protocols. We keep a client of our own because it takes
the least CPU time for a small chat request: 0.079 ms, against 0.208 ms for aiohttp (0.023 against
0.101 ms on a faster machine; `benchmarks/DETAILS.md` names the command). A request is one write,
and bytes that arrive together are returned as one part.

httpx's transport is not used, not even for proxies: it reads one event at a time without yielding,
so that 64 KB of informational responses stall the event loop for 0.7 s, and it does not limit their
number.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import select
import socket
import ssl
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import NoReturn, Protocol, cast

import aiohappyeyeballs
import httptools
import httpx

from router_service.core.addresses import check_http_address, check_proxy_address
from router_service.core.errors import Failure, UpstreamError
from router_service.core.sharing import FairSemaphore
from router_service.settings import Timeouts

MAX_HEAD_BYTES = 100 * 1024
"""Longest status line and headers of a response, including informational responses before it.
httpx's own transport has the same limit."""

MAX_HEADERS = 256
"""Most headers of a response. Providers send about 30."""

MAX_INFORMATIONAL = 100
"""Most informational responses (status 1xx) before the response. A server may send one every few
seconds while a model thinks."""

MAX_FRAMING_BYTES = 16 * 1024
"""Most bytes of a chunked body that are neither content nor the normal cost of chunks: chunk
extensions, leading zeros, and trailers. Go's net/http has the same limit (CVE-2023-39326)."""

FRAMING_BYTES_PER_BYTE = 16
"""Most bytes of framing for each byte of content. A chunk of one byte without extensions has 5
bytes of framing."""

MAX_UNREAD_BYTES = 64 * 1024
"""Most bytes of a body that are buffered. If there are more, nothing is read from the socket until
the buffered bytes have been read."""

MAX_READ_BYTES = 64 * 1024
"""Longest part that `read` returns. uvloop receives 256 KB at a time. If these are events of a few
bytes, they would keep a reader busy for 0.1 s, during which no other request is served."""

MAX_PASSED_BYTES = 16 * 1024
"""Longest part that is passed on as soon as it arrives, without waking the reader. Reading so many
bytes of small events takes up to 1 ms, and other requests wait meanwhile."""

WRITE_BYTES = 64 * 1024
"""Bytes of a request's body that are written at a time. The write timeout applies to each."""

KEEP_ALIVE_S = 30.0
"""How long idle connections are kept. Providers' load balancers close them after 60 s or more."""

HAPPY_EYEBALLS_S = 0.25
"""How long one IP address is tried before the next one is tried in parallel (RFC 8305, section
5)."""

RawHeaders = list[tuple[bytes, bytes]]

JSON_CONTENT = (b"content-type", b"application/json")

_log = logging.getLogger("switchcraft.upstream")


class ConnectionFault(Enum):
    """What can go wrong in an exchange, as clients are told, and the kind of failure.

    Each text completes "The upstream of model X ...". It has neither an address nor a key.
    """

    ADDRESS = "has an invalid address or one that is not HTTP", Failure.UNREACHABLE
    REQUEST = (
        "was not called, because the request's URL or headers are not valid",
        Failure.UNREACHABLE,
    )
    POOL_TIMEOUT = (
        "has no free connection, because too many requests are in progress",
        Failure.BUSY,
    )
    CONNECT_TIMEOUT = "did not accept a connection in time", Failure.UNREACHABLE
    CONNECT = "could not be reached", Failure.UNREACHABLE
    PROXY = "could not be reached through the proxy", Failure.UNREACHABLE
    WRITE_TIMEOUT = "did not read the request in time", Failure.TIMEOUT
    RESET = "broke the connection while it answered", Failure.BROKEN
    PROTOCOL = "broke the connection, or does not speak HTTP", Failure.BROKEN
    CODING = "answered with compressed data that cannot be read", Failure.MALFORMED

    def error(self, model: str, detail: str) -> UpstreamError:
        """Return the error for a model's upstream. Only tracebacks show the detail."""
        error = UpstreamError(model, *self.value)
        error.add_note(detail)
        return error


class HttpResponse(Protocol):
    """A response whose status and headers have arrived. Header names are in lower case."""

    status: int
    headers: RawHeaders

    async def read(self) -> bytes:
        """Return the next part of the body, or no bytes at its end."""


class Connection(asyncio.Protocol):
    """A connection that carries one exchange at a time. It raises UpstreamError.

    An exchange is a request and its response. The number of bytes that an upstream can make the
    connection buffer is limited, however these bytes are split into packets. The parser buffers the
    header or trailer that it is reading, so `data_received` counts every byte outside of bodies.
    """

    def __init__(self) -> None:
        self.idle_since_s = 0.0
        # Stored, because until Python 3.12 every look-up of the loop is a system call.
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._poll = select.poll()
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[None] | None = None
        self._is_write_paused = False
        self._is_read_paused = False
        self._model = ""
        """Whose upstream the errors are about."""
        self._error: Exception | None = None
        self._is_open = True
        self._reset()

    def _reset(self) -> None:
        self.status = 0
        self.headers: RawHeaders = []
        self._is_sent = False
        self._head_bytes = 0
        self._informational = 0
        self._framing_bytes = 0
        self._trailer_bytes = 0
        self._has_head = False
        self._is_complete = False
        self._keeps_alive = False
        self._parts: list[bytes] = []
        self._unread_bytes = 0
        self.on_part: Callable[[bytes], bool] | None = None
        """Called with a part that arrives while `read` waits. If it returns True, it has taken the
        part, and `read` waits for the next one. An error that it raises is raised by `read`."""

    # The exchange

    async def send(
        self, model: str, head: bytes, body: bytes, write_timeout_s: float | None
    ) -> None:
        """Send a request for a model.

        Return early if the upstream closes the connection, or if its whole response has arrived
        while it does not read. Raise UpstreamError if it neither reads nor responds for
        `write_timeout_s`.
        """
        self._reset()
        self._model = model
        data, position = head + body[:WRITE_BYTES], WRITE_BYTES
        while True:
            if self._transport is not None and self._is_open:
                self._transport.write(data)
            if self._is_write_paused:
                try:
                    async with asyncio.timeout(write_timeout_s):
                        while self._is_write_paused and self._is_open and not self._is_complete:
                            await self._wait()
                except TimeoutError as exc:
                    if not self._has_head:
                        raise ConnectionFault.WRITE_TIMEOUT.error(
                            model, "the request was not read"
                        ) from exc
                if self._is_write_paused:
                    return
            if position >= len(body):
                break
            data, position = body[position : position + WRITE_BYTES], position + WRITE_BYTES
        self._is_sent = True

    async def read_head(self) -> None:
        """Wait for the response's status and headers."""
        while not self._has_head:
            await self._wait()

    async def read(self) -> bytes:
        """Return the next part of the body, or no bytes at its end."""
        while not self._parts and not self._is_complete:
            await self._wait()
        data = b"".join(self._parts)
        self._parts.clear()
        self._unread_bytes = 0
        if len(data) > MAX_READ_BYTES:
            self._parts.append(data[MAX_READ_BYTES:])
            self._unread_bytes = len(self._parts[0])
            await asyncio.sleep(0)
            return data[:MAX_READ_BYTES]
        if self._is_read_paused and self._transport is not None and self._is_open:
            self._is_read_paused = False
            self._transport.resume_reading()
        return data

    def stop_reading(self, error: Exception) -> None:
        """End the exchange and let `read` raise an error."""
        self._error = self._error or error
        self._wake()

    async def _wait(self) -> None:
        """Wait until the connection's state changes, or raise the error that ended it."""
        if self._error is not None:
            raise self._error
        if not self._is_open:
            raise ConnectionFault.PROTOCOL.error(self._model, "the connection was closed too early")
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def is_at_end(self) -> bool:
        """Return whether the whole response has been read."""
        return self._is_complete and not self._parts

    @property
    def is_reusable(self) -> bool:
        """Return whether the exchange is complete and the connection stays open."""
        is_over = self._is_complete and not self._parts and self._is_sent
        return is_over and self._keeps_alive and self._is_open

    @property
    def is_stale(self) -> bool:
        """Return whether an idle connection was closed, or received unexpected bytes."""
        return not self._is_open or bool(self._poll.poll(0))

    async def start_tls(self, tls: ssl.SSLContext, host: str) -> Connection:
        """Return a TLS connection on top of this one, which a proxy has connected to `host`."""
        connection = Connection()
        transport = await self._loop.start_tls(
            cast("asyncio.Transport", self._transport), connection, tls, server_hostname=host
        )
        connection.connection_made(cast("asyncio.Transport", transport))
        return connection

    def close(self) -> None:
        """Close the connection at once, without sending what is still buffered."""
        self._is_open = False
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, problem: str) -> None:
        """End the exchange and the connection. If there are several problems, report the first."""
        self._error = self._error or ConnectionFault.PROTOCOL.error(self._model, problem)
        self.close()

    # Callbacks of the event loop (asyncio.Protocol)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's class is not a subclass
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        # Writing pauses as soon as one byte waits to be sent, so a pause shows that the request is
        # not completely sent. With a limit of 0, writing would pause even if no byte waits
        # (asyncio.sslproto).
        self._transport.set_write_buffer_limits(high=1, low=0)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes and enforce the limits."""
        had_head, unread_bytes = self._has_head, self._unread_bytes
        if not had_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail("the upstream started an upgrade that was not requested")
        except httptools.HttpParserError as exc:
            # The parser reports an exception of a callback as its own error. Those that
            # `_stop_parser` raises have a problem already.
            cause = exc.__context__
            if isinstance(exc, httptools.HttpParserCallbackError) and self._error is None:
                _log.error("the gateway failed to read a response", exc_info=cause)
            self._fail(f"the response is not valid HTTP: {exc}")
        if had_head:
            body_bytes = self._unread_bytes - unread_bytes
            framing_bytes = self._framing_bytes + len(data) - body_bytes
            self._framing_bytes = max(0, framing_bytes - FRAMING_BYTES_PER_BYTE * body_bytes)
            if self._framing_bytes > MAX_FRAMING_BYTES:
                self._fail(f"the body's chunks have more than {MAX_FRAMING_BYTES} bytes of framing")
        elif not self._has_head and (problem := self._head_problem(self._head_bytes)):
            self._fail(problem)
        if self.on_part is None or not self._pass_on(self.on_part):
            self._wake()

    def _pass_on(self, on_part: Callable[[bytes], bool]) -> bool:
        """Let `on_part` take what has arrived; return whether the reader need not be woken."""
        waiter = self._waiter
        is_waiting = waiter is not None and not waiter.done()
        is_over = self._is_complete or self._error is not None
        if not is_waiting or is_over or not 0 < self._unread_bytes <= MAX_PASSED_BYTES:
            return False
        try:
            is_taken = on_part(b"".join(self._parts))
        except Exception as exc:  # noqa: BLE001 - the reader raises it
            self._error, is_taken = exc, True
        if is_taken:
            self._parts.clear()
            self._unread_bytes = 0
        return is_taken and self._error is None

    def connection_lost(self, exc: Exception | None) -> None:
        """End the response. If it has no length, the end of the connection is its regular end."""
        self._is_open = False
        # The parser has methods of this object. Without it, the connection and what it has received
        # are freed at once, and not by the next full garbage collection: 150 connections had kept
        # up to 150 MB for seconds.
        del self._parser
        if exc is not None:
            self._error = self._error or ConnectionFault.RESET.error(self._model, str(exc))
        elif self._has_head and self._error is None:
            names = {name for name, _ in self.headers}
            if names.isdisjoint((b"content-length", b"transfer-encoding")):
                self._is_complete = True
        self._wake()

    def pause_writing(self) -> None:
        """Record that written bytes wait to be sent."""
        self._is_write_paused = True

    def resume_writing(self) -> None:
        """Record that all written bytes were sent."""
        self._is_write_paused = False
        self._wake()

    # Callbacks of the parser (httptools)

    def on_message_begin(self) -> None:
        """Close the connection if a second response begins, because none was requested."""
        if self._has_head:
            self._keeps_alive = False
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header. Trailers are counted and dropped, because they are not used."""
        if not self._has_head:
            self.headers.append((name.lower(), value))
            return
        self._trailer_bytes += len(name) + len(value) + 4
        if self._trailer_bytes > MAX_FRAMING_BYTES:
            self._stop_parser(f"the response has more than {MAX_FRAMING_BYTES} bytes of trailers")

    def on_headers_complete(self) -> None:
        """Store a response's status, or skip an informational response (RFC 9110, 15.2)."""
        if self._has_head:  # a second response
            return
        status = self._parser.get_status_code()
        if 100 <= status < 200:
            self.headers = []
            self._informational += 1
            if status == 101 or self._informational > MAX_INFORMATIONAL:
                self._stop_parser(
                    f"{self._informational} informational responses, the last one with status "
                    f"{status}, are not accepted"
                )
            return
        if self._head_bytes > MAX_HEAD_BYTES or len(self.headers) > MAX_HEADERS:
            # `_head_bytes` counts whole packets, which often contain a part of the body. So the
            # headers are measured again without it.
            size_bytes = sum([len(name) + len(value) + 4 for name, value in self.headers])
            if problem := self._head_problem(size_bytes):
                self._stop_parser(problem)
        self.status, self._has_head = status, True

    def on_body(self, data: bytes) -> None:
        """Buffer a part of the body."""
        self._unread_bytes += len(data)
        if self._is_complete:  # a second response
            return
        self._parts.append(data)
        if self._unread_bytes > MAX_UNREAD_BYTES and not self._is_read_paused and self._transport:
            self._is_read_paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        """Record the end of the response."""
        if self._has_head and not self._is_complete:
            self._is_complete = True
            self._keeps_alive = self._parser.should_keep_alive()

    def _head_problem(self, size_bytes: int) -> str | None:
        if size_bytes > MAX_HEAD_BYTES:
            return f"the response has more than {MAX_HEAD_BYTES} bytes of headers"
        return (
            f"the response has more than {MAX_HEADERS} headers"
            if len(self.headers) > MAX_HEADERS
            else None
        )

    def _stop_parser(self, problem: str) -> NoReturn:
        """Fail from within a callback of the parser, which then raises its own error."""
        self._fail(problem)
        raise ValueError(problem)


@lru_cache(maxsize=1024)
def _host_and_target(url: str) -> tuple[bytes, bytes]:
    """Return the host of a URL, and its path with the query; raises httpx.InvalidURL.

    The result is cached, because httpx takes 0.03 ms to parse a URL.
    """
    parsed = httpx.URL(url)
    return parsed.netloc, parsed.raw_path


@dataclass(slots=True)
class HttpRequest:
    """A request to one deployment, from its first draft until it is written.

    `UpstreamClient` adds headers, a platform may change the address, the headers and the body, and
    the transport adds `Host` and the body's length.
    """

    model: str
    """The pool's name of the model, for errors."""
    path: str
    """The endpoint of the API, such as `/messages`."""
    url: str
    body: bytes
    timeouts: Timeouts
    client_headers: Mapping[str, str] = field(default_factory=dict)
    """What the client sent. Only the headers that are meant for upstreams are forwarded."""
    caller: str | None = None
    """Name of the client's key. Callers share the connections to an upstream."""
    needs_new_connection: bool = False
    """Whether a kept-alive connection must not be used. The upstream may be closing such a
    connection. If it does, it is unknown whether the upstream acted on the request."""
    on_sent: Callable[[], None] | None = field(default=None, repr=False)
    """Called just before the first byte is written, after which the upstream may act and bill."""
    method: str = "POST"
    headers: RawHeaders = field(default_factory=lambda: [JSON_CONTENT])


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
    """Return the transport to an upstream, through a proxy if the environment names one.

    The proxy is taken from the same environment variables as in curl and httpx. Raise ValueError or
    httpx.InvalidURL if the address of the upstream or of the proxy is invalid, or so ambiguous that
    two URL parsers could disagree about it.
    """
    check_http_address(origin)
    url = httpx.URL(origin)
    proxies = urllib.request.getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    if not proxy or urllib.request.proxy_bypass(url.netloc.decode("ascii")):
        return Transport(url, tls, max_connections)
    address = proxy if "://" in proxy else f"http://{proxy}"
    return Transport(url, tls, max_connections, Proxy.at(address))


class Transport:
    """Up to `max_connections` connections to one origin, which are kept alive for later requests.

    Callers share them fairly, so that the requests of one caller cannot hold all connections to an
    upstream that hangs. It raises UpstreamError. A request's timeouts bound connecting,
    writing and waiting for a connection. How long the response is read is not limited here.
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
        # For http, the proxy reads and forwards each request. For https, it only opens a tunnel.
        self._forwarder = proxy if origin.scheme != "https" else None
        self._permits = FairSemaphore(max_connections, leaves_room=True)
        self._callers: dict[Connection, str | None] = {}
        """Who uses each connection that is in use."""
        self._idle: deque[Connection] = deque()
        self._is_closed = False

    async def send(self, request: HttpRequest) -> Connection:
        """Send a request and return its connection once the response's headers have arrived.

        The caller reads the response from the connection and then passes it to `release`. Raise
        UpstreamError if no response arrives, or if the request is not valid HTTP.
        """
        try:
            host, target = _host_and_target(request.url)
        except httpx.InvalidURL as exc:
            raise ConnectionFault.ADDRESS.error(request.model, str(exc)) from exc
        headers = [(b"host", host), *request.headers]
        if request.body or request.method in {"POST", "PUT", "PATCH"}:
            headers.append((b"content-length", b"%d" % len(request.body)))
        if self._forwarder is not None:
            target = b"http://" + host + target
            headers += self._forwarder.headers
        lines = [request.method.encode("ascii") + b" " + target + b" HTTP/1.1"]
        lines += [name + b": " + value for name, value in headers]
        head = b"\r\n".join((*lines, b"", b""))
        if not head.count(b"\r") == head.count(b"\n") == len(lines) + 1 or b"\0" in head:
            raise ConnectionFault.REQUEST.error(
                request.model, "a header contains a control character"
            )
        connection = await self._acquire(request)
        if request.on_sent is not None:
            request.on_sent()
        try:
            await connection.send(request.model, head, request.body, request.timeouts.write_s)
            await connection.read_head()
        except BaseException:
            self.release(connection)
            raise
        return connection

    def release(self, connection: Connection) -> None:
        """Keep a connection for another request, or close it if it cannot be reused."""
        self._permits.release(self._callers.pop(connection))
        connection.on_part = None  # it refers to the whole request
        now_s = time.monotonic()
        while self._idle and self._idle[0].idle_since_s < now_s - KEEP_ALIVE_S:
            self._idle.popleft().close()
        if connection.is_reusable and not self._is_closed:
            connection.idle_since_s = now_s
            self._idle.append(connection)
        else:
            connection.close()

    async def aclose(self) -> None:
        """Close idle connections now, and connections in use when they are released."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().close()

    async def _acquire(self, request: HttpRequest) -> Connection:
        """Return an idle or new connection, as soon as the caller may use one more."""
        caller = request.caller
        # The first try needs no timer, which would cost more than the rest.
        if not self._permits.try_acquire(caller):
            try:
                async with asyncio.timeout(request.timeouts.pool_s):
                    await self._permits.acquire(caller)
            except TimeoutError as exc:
                raise ConnectionFault.POOL_TIMEOUT.error(
                    request.model, "none was free in time"
                ) from exc
        try:
            connection: Connection | None = None
            if request.needs_new_connection and self._idle:
                self._idle.popleft().close()  # the new connection will be kept in its place
            oldest_s = time.monotonic() - KEEP_ALIVE_S
            # The most recently used connection comes first, so that surplus connections expire.
            while self._idle and not request.needs_new_connection and connection is None:
                idle = self._idle.pop()
                if idle.idle_since_s >= oldest_s and not idle.is_stale:
                    connection = idle
                else:
                    idle.close()
            connection = connection or await self._connect(request)
        except BaseException:
            self._permits.release(caller)
            raise
        self._callers[connection] = caller
        return connection

    async def _connect(self, request: HttpRequest) -> Connection:
        model = request.model
        try:
            async with asyncio.timeout(request.timeouts.connect_s):
                if self._proxy is None:
                    return await self._open(self._origin)
                scheme = self._proxy.url.scheme
                if scheme not in {"http", "https"}:
                    problem = f"the proxy must use http or https, not {scheme!r}"
                    raise ConnectionFault.PROXY.error(model, problem)
                connection = await self._open(self._proxy.url)
                if self._forwarder is not None:
                    return connection
                try:
                    return await self._open_tunnel(model, connection, self._proxy)
                except BaseException:
                    connection.close()
                    raise
        except TimeoutError as exc:
            raise ConnectionFault.CONNECT_TIMEOUT.error(
                model, "no connection was made in time"
            ) from exc
        except (OSError, UnicodeError) as exc:  # UnicodeError: a name that no host can have
            raise ConnectionFault.CONNECT.error(model, str(exc)) from exc

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

    async def _open_tunnel(self, model: str, connection: Connection, proxy: Proxy) -> Connection:
        """Let the proxy connect to the origin (RFC 9110, section 9.3.6), and start TLS."""
        authority = self._origin.netloc + (b"" if self._origin.port else b":443")
        lines = [b"CONNECT " + authority + b" HTTP/1.1", b"host: " + authority]
        lines += [name + b": " + value for name, value in proxy.headers]
        try:
            await connection.send(model, b"\r\n".join((*lines, b"", b"")), b"", None)
            await connection.read_head()
        except UpstreamError as exc:
            raise ConnectionFault.PROXY.error(model, str(exc)) from exc
        if connection.status // 100 != 2:
            raise ConnectionFault.PROXY.error(model, f"it answered with status {connection.status}")
        return await connection.start_tls(self._tls, _host_of(self._origin))


def _host_of(url: httpx.URL) -> str:
    return url.raw_host.decode("ascii").strip("[]")
