"""One HTTP/1.1 connection to an upstream (RFC 9112), as the event loop drives it.

httptools reads what comes. A request is one write, and the bytes that came together are one part:
with httpx's own transport a small chat request takes 0.5 ms of CPU, with aiohttp's beneath httpx
0.23 ms, with aiohttp 0.13 ms, with this 0.03 ms (`python benchmarks/upstream_client.py`).
"""

from __future__ import annotations

import asyncio
import select
from typing import cast

import httptools
import httpx

MAX_HEAD_BYTES = 100 * 1024
"""Longest status line and headers of an answer, as httpx's own transport has it."""

MAX_UNREAD_BYTES = 64 * 1024
"""Of a body that nobody reads; beyond it the upstream is read no further."""

WRITE_BYTES = 64 * 1024
"""Of a request's body that are written at a time, each within the time for writing."""

RawHeaders = list[tuple[bytes, bytes]]


class Connection(asyncio.Protocol):
    """A connection that one exchange uses at a time; raises httpx's errors where that fails."""

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
        if not self._has_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as exc:
            self._fail(httpx.RemoteProtocolError(f"no HTTP: {exc}"))
        if not self._has_head and self._head_bytes > MAX_HEAD_BYTES:
            self._fail(httpx.RemoteProtocolError(f"more than {MAX_HEAD_BYTES} bytes of headers"))
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the answer: well, where that is how its end is shown."""
        self._is_open = False
        if exc is not None:
            self._error = self._error or httpx.ReadError(str(exc))
        elif self._has_head and not self._is_delimited:
            self._is_complete = True
        self._wake()

    def pause_writing(self) -> None:
        """Note that the upstream has not taken all."""
        self._is_write_paused = True

    def resume_writing(self) -> None:
        """Note that all is sent."""
        self._is_write_paused = False
        self._wake()

    def _fail(self, error: httpx.TransportError) -> None:
        self._error = error
        self.close()

    # What the parser tells (httptools).

    def on_message_begin(self) -> None:
        """Refuse what comes unasked."""
        if self._has_head:
            self._is_reusable = False
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, but for trailers: nobody reads them."""
        if not self._has_head:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Take an answer's start; what is informational (RFC 9110, section 15.2) is passed over."""
        status = self._parser.get_status_code()
        if status < 200:
            self.headers = []
        elif not self._has_head:
            self.status, self._has_head = status, True

    def on_body(self, data: bytes) -> None:
        """Keep a part of the body until somebody reads it."""
        if self._is_complete:  # of a second answer, which nobody asked for
            return
        self._parts.append(data)
        self._unread_bytes += len(data)
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
