"""An HTTP/1.1 connection to an upstream (RFC 9112), built on httptools and asyncio's protocols.

We keep a client of our own because it takes the least CPU time for a small chat request: 0.079 ms,
against 0.208 ms for aiohttp (`python benchmarks/upstream_client.py`, on the machine of
`benchmarks/RESULTS.md`; 0.023 against 0.101 ms on a faster one). A request is one write, and all
bytes that arrived together are returned as one part.
"""

from __future__ import annotations

import asyncio
import select
import ssl
import zlib
from collections.abc import Awaitable, Callable, Iterable
from typing import NoReturn, Protocol, cast

import httptools
import httpx

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
"""Framing that is allowed for each byte of content. A chunk of one byte without extensions has 5
bytes of framing."""

MAX_UNREAD_BYTES = 64 * 1024
"""Most bytes of a body that are buffered before they are read. Beyond it, the socket is not read
until the buffer is."""

MAX_READ_BYTES = 64 * 1024
"""Longest part that `read` returns. uvloop receives 256 KB at a time. As events of a few bytes,
these would keep a reader busy for 0.1 s, during which no other request is served."""

WRITE_BYTES = 64 * 1024
"""Bytes of a request's body that are written at a time. The write timeout applies to each."""

MAX_PART_BYTES = 64 * 1024
"""Longest part that is decompressed at a time, which takes 0.2 ms. Other requests are served in
between."""

ACCEPTED_CODINGS = frozenset({"gzip", "x-gzip", "deflate"})
"""Content codings that can be read (RFC 9110, section 8.4.1). `deflate` is zlib's format."""

RawHeaders = list[tuple[bytes, bytes]]


class HttpResponse(Protocol):
    """A response whose status and headers have arrived. Header names are in lower case."""

    status: int
    headers: RawHeaders

    async def read(self) -> bytes:
        """Return the next part of the body, or no bytes at its end."""


class Connection(asyncio.Protocol):
    """A connection that carries one exchange at a time. It raises httpx's errors.

    All that an upstream can make it buffer is bounded, however the bytes are split into packets.
    The parser buffers the header or trailer that it is reading, so `data_received` counts every
    byte that is not part of a body.
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
        self._error: httpx.TransportError | None = None
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

    # The exchange

    async def send(self, head: bytes, body: bytes, write_timeout_s: float | None) -> None:
        """Send a request.

        Return early if the upstream hangs up, or if it responds without reading the whole request.
        Raise WriteTimeout if it neither reads nor responds for `write_timeout_s`.
        """
        self._reset()
        data, position = head + body[:WRITE_BYTES], WRITE_BYTES
        while True:
            if self._transport is not None and self._is_open:
                self._transport.write(data)
            if self._is_write_paused:
                try:
                    async with asyncio.timeout(write_timeout_s):
                        while self._is_write_paused and self._is_open:
                            await self._wait()
                except TimeoutError as exc:
                    if not self._has_head:
                        raise httpx.WriteTimeout("the request was not read in time") from exc
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

    async def _wait(self) -> None:
        """Wait until the connection's state changes, or raise the error that ended it."""
        if self._error is not None:
            raise self._error
        if not self._is_open:
            raise httpx.RemoteProtocolError("the connection was closed before the response ended")
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

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
        """End the exchange and the connection. The first problem is the one that is reported."""
        self._error = self._error or httpx.RemoteProtocolError(problem)
        self.close()

    # Callbacks of the event loop (asyncio.Protocol)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's has no such base class
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        # Writing pauses as soon as one byte waits, which shows that a request is not sent yet. A
        # limit of 0 would pause even when none waits (asyncio.sslproto).
        self._transport.set_write_buffer_limits(high=1, low=0)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes and enforce the limits."""
        had_head, unread_bytes = self._has_head, self._unread_bytes
        if not had_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail("an upgrade that was not requested")
        except httptools.HttpParserError as exc:
            self._fail(f"not HTTP: {exc}")
        if had_head:
            body_bytes = self._unread_bytes - unread_bytes
            framing_bytes = self._framing_bytes + len(data) - body_bytes
            self._framing_bytes = max(0, framing_bytes - FRAMING_BYTES_PER_BYTE * body_bytes)
            if self._framing_bytes > MAX_FRAMING_BYTES:
                self._fail(f"more than {MAX_FRAMING_BYTES} bytes between parts of a body")
        elif not self._has_head and (problem := self._head_problem(self._head_bytes)):
            self._fail(problem)
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the response. Without a length, the end of the connection is its regular end."""
        self._is_open = False
        if exc is not None:
            self._error = self._error or httpx.ReadError(str(exc))
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
            self._stop_parser(f"more than {MAX_FRAMING_BYTES} bytes of trailers")

    def on_headers_complete(self) -> None:
        """Take a response's status, or skip an informational response (RFC 9110, 15.2)."""
        if self._has_head:  # a second response
            return
        status = self._parser.get_status_code()
        if 100 <= status < 200:
            self.headers = []
            self._informational += 1
            if status == 101 or self._informational > MAX_INFORMATIONAL:
                self._stop_parser(f"{self._informational} informational responses, last {status}")
            return
        if self._head_bytes > MAX_HEAD_BYTES or len(self.headers) > MAX_HEADERS:
            # Often only the packets are that long, because they include a part of the body.
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
            return f"more than {MAX_HEAD_BYTES} bytes of headers"
        return f"more than {MAX_HEADERS} headers" if len(self.headers) > MAX_HEADERS else None

    def _stop_parser(self, problem: str) -> NoReturn:
        """Fail from within a callback. The parser reports the exception as an error itself."""
        self._fail(problem)
        raise ValueError(problem)


def read_codings(headers: Iterable[tuple[bytes, bytes]]) -> list[str]:
    """Return the codings of a body from all header lines, without `identity`.

    Transfer codings other than `chunked` are included, because `Connection` does not decode them.
    """
    found: list[str] = []
    for name, value in headers:
        if name in {b"content-encoding", b"transfer-encoding"}:
            plain = "identity" if name == b"content-encoding" else "chunked"
            items = (item.strip().lower() for item in value.decode("latin-1").split(","))
            found += [item for item in items if item not in {"", plain}]
    return found


class Decompressor:
    """Decompresses a gzip or zlib body into parts of at most `MAX_PART_BYTES`.

    Some upstreams compress although they are asked not to. Only a single level is accepted: two
    levels of 7 KB unpack to 8 GB. A single level still unpacks to a thousand times its size, so
    no more is unpacked than is read.

    The format is recognized by its header. `read` raises httpx.DecodingError if the body has
    neither format, ends too early, or continues after its end. A second gzip member is not read.
    """

    def __init__(self, read_compressed: Callable[[], Awaitable[bytes]]) -> None:
        """Read from a function that returns the next part, or no bytes at the end."""
        self._read_compressed = read_compressed
        self._decompressor = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
        self._has_more = False
        """Whether the decompressor may have more output for the input that it already has."""
        self._is_empty = True

    async def read(self) -> bytes:
        """Return the next part of the body, or no bytes at its end."""
        while not self._decompressor.eof:
            compressed = self._decompressor.unconsumed_tail
            if not compressed and not self._has_more:
                compressed = await self._read_compressed()
                if not compressed and self._is_empty:
                    return b""  # there is no body at all, in whatever coding
                if not compressed:
                    raise httpx.DecodingError("the compressed data ends too early")
                self._is_empty = False
            try:
                part = self._decompressor.decompress(compressed, MAX_PART_BYTES)
            except zlib.error as exc:
                raise httpx.DecodingError(str(exc)) from exc
            self._has_more = len(part) == MAX_PART_BYTES
            if part:
                await asyncio.sleep(0)
                return part
        if self._decompressor.unused_data or await self._read_compressed():
            raise httpx.DecodingError("there is data after the end of the compressed body")
        return b""
