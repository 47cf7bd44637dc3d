"""One HTTP/1.1 connection to an upstream (RFC 9112), as the event loop drives it.

httptools reads what comes. A request is one write, and the bytes that came together are one part:
with httpx's own transport a small chat request takes 0.5 ms of CPU, with aiohttp's beneath httpx
0.23 ms, with aiohttp 0.13 ms, with this 0.03 ms (`python benchmarks/upstream_client.py`).
"""

from __future__ import annotations

import asyncio
import select
import ssl
import zlib
from collections.abc import Awaitable, Callable, Iterable
from typing import NoReturn, cast

import httptools
import httpx

MAX_HEAD_BYTES = 100 * 1024
"""Longest status line and headers of an answer, informational answers before it included. httpx's
own transport has the same limit."""

MAX_HEADERS = 256
"""Most headers of an answer. Providers send about 30."""

MAX_INFORMATIONAL = 100
"""Most informational answers (status 1xx) before the answer. A server may send one every few
seconds while a model thinks."""

MAX_FRAMING_BYTES = 16 * 1024
"""Most bytes of a chunked body that are neither content nor what chunks normally cost: chunk
extensions, leading zeros, and trailers. Go's net/http has the same limit (CVE-2023-39326)."""

FRAMING_BYTES_PER_BYTE = 16
"""Framing that each byte of content pays for: a chunk of one byte has 5 without extensions."""

MAX_UNREAD_BYTES = 64 * 1024
"""Longest part of a body that is buffered before somebody reads it. The upstream is read no further
until then."""

MAX_READ_BYTES = 64 * 1024
"""Longest part that a reader gets at once. uvloop reads 256 KB at a time: as events of a few bytes,
these would take a reader 0.1 s, in which nobody else is served."""

WRITE_BYTES = 64 * 1024
"""Of a request's body that are written at a time, each within the time for writing."""

RawHeaders = list[tuple[bytes, bytes]]


class Connection(asyncio.Protocol):
    """One connection, used by one exchange at a time. Raises httpx's errors if an exchange fails.

    What an upstream may make it buffer is bounded, however the bytes are split into packets: the
    parser holds the header or trailer that it is reading, so `data_received` counts every byte that
    is not part of a body.
    """

    def __init__(self) -> None:
        """Wait to be connected."""
        self.idle_since_s = 0.0
        # Kept, for asking for it is a system call (until Python 3.12).
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._poll = select.poll()
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[None] | None = None
        self._is_write_paused = False
        self._is_read_paused = False
        self._error: httpx.TransportError | None = None
        self._is_open = True
        self._expect_answer()

    def _expect_answer(self) -> None:
        self.status = 0
        self.headers: RawHeaders = []
        self._head_bytes = 0
        self._informational = 0
        self._framing_bytes = 0
        self._trailer_bytes = 0
        self._has_head = False
        self._is_complete = False
        self._is_reusable = False
        self._parts: list[bytes] = []
        self._unread_bytes = 0

    # What an exchange asks for.

    async def send(self, head: bytes, body: bytes, write_timeout_s: float | None) -> None:
        """Send a request; ends early where the upstream hangs up, or answers and takes no more.

        Raises WriteTimeout where it takes nothing for so long, and does not answer.
        """
        self._expect_answer()
        self._is_sent = False
        self._write(head + body[:WRITE_BYTES])
        for start in range(WRITE_BYTES, len(body), WRITE_BYTES):
            if not await self._drained(write_timeout_s):
                return
            self._write(body[start : start + WRITE_BYTES])
        self._is_sent = await self._drained(write_timeout_s)

    def _write(self, data: bytes) -> None:
        if self._transport is not None and self._is_open:
            self._transport.write(data)

    async def _drained(self, timeout_s: float | None) -> bool:
        """Wait until what was written is sent; False where it is not, and there is more to read."""
        if not self._is_write_paused:
            return True
        try:
            async with asyncio.timeout(timeout_s):
                while self._is_write_paused and self._is_open:
                    await self._wait()
        except TimeoutError as exc:
            if not self._has_head:
                raise httpx.WriteTimeout("the request was not taken in time") from exc
        return not self._is_write_paused

    async def read_head(self) -> None:
        """Wait for the answer's status and headers."""
        while not self._has_head:
            self._check()
            await self._wait()

    async def read(self) -> bytes:
        """Wait for the next part of the answer's body; empty at its end."""
        while not self._parts and not self._is_complete:
            self._check()
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

    @property
    def is_reusable(self) -> bool:
        """Whether another request may be sent: nothing of the last exchange is to come."""
        is_over = self._is_complete and not self._parts and self._is_sent
        return is_over and self._is_reusable and self._is_open

    @property
    def is_stale(self) -> bool:
        """Whether something has come while nothing was asked: the upstream hangs up, mostly."""
        return not self._is_open or bool(self._poll.poll(0))

    async def with_tls(self, tls: ssl.SSLContext, host: str) -> Connection:
        """Return a connection over TLS that goes on where this one ends: a tunnel has begun."""
        connection = Connection()
        transport = await self._loop.start_tls(
            cast("asyncio.Transport", self._transport), connection, tls, server_hostname=host
        )
        connection.connection_made(cast("asyncio.Transport", transport))
        return connection

    def close(self) -> None:
        """Close at once; what was not sent is lost."""
        self._is_open = False
        if self._transport is not None:
            self._transport.abort()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if not self._is_open:
            raise httpx.RemoteProtocolError("the connection was closed before the answer's end")

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # What the event loop tells (asyncio.Protocol).

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's has no such base
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        # Paused with the first byte that waits, for then a request is not sent; 0 would pause
        # without one (asyncio.sslproto).
        self._transport.set_write_buffer_limits(high=1, low=0)

    def data_received(self, data: bytes) -> None:
        """Read a part of an answer."""
        had_head, unread_bytes = self._has_head, self._unread_bytes
        if not had_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse("an upgrade that was not asked for")
        except httptools.HttpParserError as exc:
            self._refuse(f"no HTTP: {exc}")
        if had_head:
            body_bytes = self._unread_bytes - unread_bytes
            framing_bytes = self._framing_bytes + len(data) - body_bytes
            self._framing_bytes = max(0, framing_bytes - FRAMING_BYTES_PER_BYTE * body_bytes)
            if self._framing_bytes > MAX_FRAMING_BYTES:
                self._refuse(f"more than {MAX_FRAMING_BYTES} bytes between parts of a body")
        elif not self._has_head and (problem := self._head_problem(self._head_bytes)):
            self._refuse(problem)
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the answer: well, where that is how its end is shown."""
        self._is_open = False
        if exc is not None:
            self._error = self._error or httpx.ReadError(str(exc))
        elif self._has_head and not self._is_delimited and self._error is None:
            self._is_complete = True
        self._wake()

    def pause_writing(self) -> None:
        """Note that the upstream has not taken all."""
        self._is_write_paused = True

    def resume_writing(self) -> None:
        """Note that all is sent."""
        self._is_write_paused = False
        self._wake()

    def _refuse(self, problem: str) -> None:
        """End the exchange, and with it the connection; the first problem is the one reported."""
        self._error = self._error or httpx.RemoteProtocolError(problem)
        self.close()

    def _head_problem(self, size_bytes: int) -> str | None:
        if size_bytes > MAX_HEAD_BYTES:
            return f"more than {MAX_HEAD_BYTES} bytes of headers"
        return f"more than {MAX_HEADERS} headers" if len(self.headers) > MAX_HEADERS else None

    def _stop_parser(self, problem: str) -> NoReturn:
        """Refuse what the parser is reading; it reports the exception as an error of its own."""
        self._refuse(problem)
        raise ValueError(problem)

    # What the parser tells (httptools).

    def on_message_begin(self) -> None:
        """End the connection if a second answer begins, which nobody asked for."""
        if self._has_head:
            self._is_reusable = False
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header. Trailers are counted and dropped, because nobody reads them."""
        if not self._has_head:
            self.headers.append((name.lower(), value))
            return
        self._trailer_bytes += len(name) + len(value) + 4
        if self._trailer_bytes > MAX_FRAMING_BYTES:
            self._stop_parser(f"more than {MAX_FRAMING_BYTES} bytes of trailers")

    def on_headers_complete(self) -> None:
        """Take an answer's status and headers; skip an informational one (RFC 9110, 15.2)."""
        if self._has_head:  # of a second answer
            return
        status = self._parser.get_status_code()
        if 100 <= status < 200:
            self.headers = []
            self._informational += 1
            if status == 101 or self._informational > MAX_INFORMATIONAL:
                self._stop_parser(f"{self._informational} informational answers, last {status}")
            return
        if self._head_bytes > MAX_HEAD_BYTES or len(self.headers) > MAX_HEADERS:
            # Often only the packets are that long, with a part of the body.
            size_bytes = sum([len(name) + len(value) + 4 for name, value in self.headers])
            if problem := self._head_problem(size_bytes):
                self._stop_parser(problem)
        self.status, self._has_head = status, True

    def on_body(self, data: bytes) -> None:
        """Keep a part of the body until somebody reads it."""
        self._unread_bytes += len(data)
        if self._is_complete:  # of a second answer
            return
        self._parts.append(data)
        if self._unread_bytes > MAX_UNREAD_BYTES and not self._is_read_paused and self._transport:
            self._is_read_paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        """Note the end of an answer."""
        if self._has_head and not self._is_complete:
            self._is_complete = True
            self._is_reusable = self._parser.should_keep_alive()

    @property
    def _is_delimited(self) -> bool:
        names = {name for name, _ in self.headers}
        return not names.isdisjoint((b"content-length", b"transfer-encoding"))


MAX_PART_BYTES = 64 * 1024
"""Longest part that is unpacked at a time, in 0.2 ms; other requests are served in between."""

ACCEPTED = frozenset({"gzip", "x-gzip", "deflate"})
"""Content codings that are read (RFC 9110, section 8.4.1); `deflate` is zlib's format."""


def codings_of(headers: Iterable[tuple[bytes, bytes]]) -> list[str]:
    """Return the codings of a body, of all header lines together, without `identity`.

    Transfer codings other than `chunked` count as well, because no connection undoes them.
    """
    found: list[str] = []
    for name, value in headers:
        if name == b"content-encoding":
            found += _listed(value, "identity")
        elif name == b"transfer-encoding":
            found += _listed(value, "chunked")
    return found


def _listed(value: bytes, plain: str) -> list[str]:
    items = (item.strip().lower() for item in value.decode("latin-1").split(","))
    return [item for item in items if item not in {"", plain}]


class Decompressor:
    """Reads a body in gzip's or zlib's format, in parts of at most `MAX_PART_BYTES`.

    The format is recognized by its header. Raises httpx.DecodingError if the body is in neither
    format, ends too early, or goes on after its end: a second member of gzip is not read.
    """

    def __init__(self, read_packed: Callable[[], Awaitable[bytes]]) -> None:
        """Read from a function that returns the next part, and nothing at the end."""
        self._read_packed = read_packed
        self._unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
        self._has_more = False
        """Whether the decompressor may have more output for the input that it already has."""
        self._is_empty = True

    async def read(self) -> bytes:
        """Return the next part of the body; empty at its end."""
        while not self._unpacker.eof:
            packed = self._unpacker.unconsumed_tail
            if not packed and not self._has_more:
                packed = await self._read_packed()
                if not packed:
                    return self._end()
                self._is_empty = False
            try:
                part = self._unpacker.decompress(packed, MAX_PART_BYTES)
            except zlib.error as exc:
                raise httpx.DecodingError(str(exc)) from exc
            self._has_more = len(part) == MAX_PART_BYTES
            if part:
                await asyncio.sleep(0)
                return part
        if self._unpacker.unused_data or await self._read_packed():
            raise httpx.DecodingError("there is more after the end of the compressed data")
        return b""

    def _end(self) -> bytes:
        """Return nothing if there was no body at all, in whatever coding."""
        if self._is_empty:
            return b""
        raise httpx.DecodingError("the compressed data ends too early")
