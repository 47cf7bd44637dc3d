"""HTTP/1.1 as uvicorn reads it, with bounds on what a client may send, and on how slowly.

uvicorn's parser holds headers of any size for any time, keeps a connection that never sends a
request, reads on after it has refused a body, and waits for ever for a client that does not read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from router_service.api.corking import CorkedTransport
from router_service.api.errors import error_body
from router_service.core.errors import InvalidRequestError
from router_service.telemetry.logs import log_request

MIN_READ_BYTES = 16 * 1024
"""What a client must take of an answer that waits for it, each `write_timeout_s`."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a connection may use."""

    max_header_bytes: int
    """Request line and headers of one request."""
    header_timeout_s: float
    """From the connection, or from a request's first byte, to the end of its headers."""
    write_timeout_s: float
    """How long a client may take nothing of an answer that waits for it."""
    linger_s: float = 2.0
    """How long a refused request may go on being sent: closed at once, the client would lose the
    answer together with the connection (RFC 9112, section 9.6)."""


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol within `limits`, which `bounded` sets."""

    limits: ClassVar[Limits]

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - uvicorn's own
        """Expect a first request."""
        super().__init__(*args, **kwargs)
        self._head_bytes = 0
        self._is_in_head = True
        self._is_in_body = False
        self._is_too_large = False
        self._is_refused = False
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first request."""
        super().connection_made(CorkedTransport(cast("asyncio.Transport", transport)))
        self._start(_HEAD, self.limits.header_timeout_s, self._end_late_head)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection, and what it was waited for."""
        for name in tuple(self._timers):
            self._stop(name)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read a part of a request, or drop it where the request is refused."""
        if self._is_refused:
            return
        if self._is_in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if not self._is_in_head or self._is_refused:
            return
        if self._head_bytes > self.limits.max_header_bytes:
            self._refuse_large_head()
        elif self._head_bytes and _HEAD not in self._timers:
            self._start(_HEAD, self.limits.header_timeout_s, self._end_late_head)

    def on_headers_complete(self) -> None:
        """Serve a request, or refuse it for the size of headers that came in one part."""
        self._is_in_head, self._is_in_body = False, True
        self._head_bytes = 0
        self._stop(_HEAD)
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self.limits.max_header_bytes:
            self._is_too_large = True
            raise ValueError("ends the parser, which then calls send_400_response")
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Expect the next request."""
        self._is_in_head, self._is_in_body = True, False
        self._stop(_LINGER)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Give a request that was answered before it was read whole a moment to end."""
        super().on_response_complete()
        if self._is_in_body:
            self._start(_LINGER, self.limits.linger_s, self.transport.abort)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, or has headers that are too large."""
        if self._is_too_large:
            self._refuse_large_head()
        else:
            self._refuse(400, f"{msg} Send HTTP/1.1 (RFC 9112).", "invalid_http")

    def pause_writing(self) -> None:
        """Watch a client that reads slower than it is answered."""
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        """Go on: the client has read."""
        super().resume_writing()
        self._stop(_READER)

    def _watch_reader(self) -> None:
        unread_bytes = self.transport.get_write_buffer_size()
        self._start(_READER, self.limits.write_timeout_s, self._check_reader, unread_bytes)

    def _check_reader(self, unread_before_bytes: int) -> None:
        unread_bytes = self.transport.get_write_buffer_size()
        if unread_bytes > unread_before_bytes - MIN_READ_BYTES:
            self.transport.abort()
        else:
            self._watch_reader()

    def _end_late_head(self) -> None:
        if self._head_bytes:
            limit_s = self.limits.header_timeout_s
            self._refuse(408, f"The headers took more than {limit_s:g} s.", "request_timeout")
        else:
            self.transport.close()

    def _refuse_large_head(self) -> None:
        limit = self.limits.max_header_bytes
        message = f"The request's address and headers are larger than {limit} bytes. Send fewer."
        self._refuse(431, message, "headers_too_large")

    def _refuse(self, status: int, message: str, code: str) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            if self.cycle.response_started:
                self.transport.abort()  # in the midst of an answer there is no room for another
                return
            # Whoever reads this request's body is told that its client has gone.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        else:
            log_request({"status": status, "code": code})  # it never becomes a request of the app
        self._is_refused = True
        self._stop(_HEAD)
        body = error_body(InvalidRequestError(message, code=code))
        head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
        self.transport.write(STATUS_LINE[status] + head % len(body) + body)
        self._start(_LINGER, self.limits.linger_s, self.transport.abort)

    def _start(
        self, name: str, delay_s: float, callback: Callable[..., None], *arguments: object
    ) -> None:
        self._stop(name)
        self._timers[name] = self.loop.call_later(delay_s, callback, *arguments)

    def _stop(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()


def bounded(limits: Limits) -> type[BoundedProtocol]:
    """Return the protocol with these limits: uvicorn makes one of it for each connection."""
    return type("Protocol", (BoundedProtocol,), {"limits": limits})


_HEAD, _LINGER, _READER = "head", "linger", "reader"
"""What a connection is waited for."""
