"""Server side of HTTP/1.1 connections, with limits on the memory and time that a client can use.

uvicorn's protocol limits neither the size of headers, trailers and pipelined requests, nor the time
that they take. It parses the body of a request with an `Upgrade` header as another request. It does
not notice that a client disconnects while a pipelined request waits. `BoundedProtocol` finds the
ends of messages itself and reads one request at a time; httptools still parses every byte.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
import urllib.parse
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, cast

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import (
    HEADER_RE,
    HEADER_VALUE_RE,
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from router_service.core.errors import InvalidRequestError, OverloadedError
from router_service.http.error_responses import code_of, error_body, retry_after
from router_service.http.transfer import CONNECTION
from router_service.telemetry.logs import log_request

MIN_READ_BYTES = 16 * 1024
"""Minimum bytes that a client must read per `write_timeout_s` while unsent bytes wait."""

MAX_WAITING_BYTES = 512 * 1024
MAX_ALL_WAITING_BYTES = 16 * 1024 * 1024
"""Maximum unparsed bytes of pipelined requests, of one connection and of the whole process."""

WARNING_INTERVAL_S = 10.0

MAX_JOINED_BYTES = 64 * 1024
"""Longest body part that is joined with the response's head, so that one write sends both."""

_END_OF_HEAD = b"\r\n\r\n"
_log = logging.getLogger("switchcraft.server")


class _InvalidHttpError(ValueError):
    """A request that is not valid HTTP/1.1, or uses a part of it that is not supported."""


class _Reading(Enum):
    """Part of a request that the next byte of a connection belongs to."""

    HEAD = "request line and headers"
    BODY = "a body of known length"
    CHUNKS = "a chunked body or its trailers"
    NOTHING = "a pipelined request that waits until the previous one is answered"


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of one connection, and of all connections of a process."""

    max_header_bytes: int
    """Maximum size of the request line and headers; also of the trailers and chunk extensions."""
    header_timeout_s: float
    """Maximum time until a request's headers are complete, from the request's first byte; for the
    first request, from the connection."""
    write_timeout_s: float
    """How long a client may stop reading an answer."""
    linger_s: float = 2.0
    """How long a client may continue to send a refused request. If the connection closed at once,
    the client would lose the answer (RFC 9112, section 9.6)."""
    max_connections: int = 4096
    """Above this number, the connection that has been idle for the longest time is closed."""


@dataclass(slots=True)
class _Shared:
    """State shared by the connections of one process."""

    max_connections: int
    idle: dict[BoundedProtocol, None] = field(default_factory=dict)
    """Connections without a request in progress, the longest idle one first."""
    waiting_bytes: int = 0
    """Unparsed bytes of pipelined requests."""
    dropped: int = 0
    """Connections closed because of the limit since the last warning."""
    warned_s: float = -WARNING_INTERVAL_S


class BoundedProtocol(HttpToolsProtocol):
    """One client connection; `protocol_with_limits` creates a subclass with limits."""

    limits: ClassVar[ConnectionLimits]
    shared: ClassVar[_Shared]

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - uvicorn's own
        """Prepare to read the first request."""
        super().__init__(*args, **kwargs)
        self._reading = _Reading.HEAD
        self._head_bytes = 0
        """Bytes of the request line and headers received so far."""
        self._head_tail = b""
        """Last bytes of an incomplete head, because its end may be split over two packets."""
        self._has_begun = False
        self._body_left_bytes = 0
        self._framing_bytes = 0
        """Bytes of chunk extensions and trailers since the last byte of content."""
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._is_feeding_head = False
        self._is_refused = False
        """Whether all further bytes are ignored."""
        self._method = self._version = b""
        self.on_left: Callable[[], None] | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}

    # Callbacks of the event loop (asyncio.Protocol).

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first request; with too many connections, close an idle one."""
        super().connection_made(cast("asyncio.Transport", transport))
        self._extensions: dict[str, Any] = {CONNECTION: self}
        self._start(_HEAD, self.limits.header_timeout_s, self._end_late_head)
        if len(self.connections) > self.shared.max_connections:
            self._make_room()
        self.shared.idle[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection, and tell a request in progress that its client disconnected."""
        for name in tuple(self._timers):
            self._stop(name)
        self.shared.idle.pop(self, None)
        self._take_waiting()
        self._extensions = {}  # which refer to this object
        super().connection_lost(exc)
        if self.cycle is not None and self.cycle.disconnected:
            self._tell_left()

    def data_received(self, data: bytes) -> None:
        """Parse the bytes of the current request, and keep those of the next one for later.

        The parser must never receive two requests at once: it would begin the second one before
        the first is answered, and it cannot be paused. So each call of the parser gets no bytes
        beyond the end of the head or of the body.
        """
        self._unset_keepalive_if_required()
        while data and not self._is_refused:
            if self._reading is _Reading.HEAD:
                data = self._parse_head(data)
                continue
            if self._reading is _Reading.BODY:
                part, data = data[: self._body_left_bytes], data[self._body_left_bytes :]
                self._body_left_bytes -= len(part)
                self._feed(part)
                continue
            if self._reading is not _Reading.NOTHING:
                self._framing_bytes += len(data)  # `on_body` resets it
                self._feed(data)
                if self._framing_bytes > self.limits.max_header_bytes and not self._is_refused:
                    self._refuse_large("The request's chunk extensions and trailers")
                return
            # Reading is not paused. Otherwise, a disconnect would not be noticed, because TCP
            # delivers the end of a connection after its data.
            self._waiting.append(data)
            self._waiting_bytes += len(data)
            self.shared.waiting_bytes += len(data)
            is_too_much = self._waiting_bytes > MAX_WAITING_BYTES
            if is_too_much or self.shared.waiting_bytes > MAX_ALL_WAITING_BYTES:
                self._end_after_answer()
            return

    def pause_writing(self) -> None:
        """Start to check whether the client reads, because it reads more slowly than we send."""
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        """Stop the check, because the client has read enough."""
        super().resume_writing()
        self._stop(_READER)

    # What the app may use (`ClientConnection`).

    @property
    def has_left(self) -> bool:
        """Whether the client has disconnected."""
        return self.cycle.disconnected

    @property
    def is_ready(self) -> bool:
        """Whether a part can be written now: the client is there, and has read all but 64 KB."""
        return not (self.flow.write_paused or self.transport.is_closing())

    def write_part(self, part: bytes) -> None:
        """Write a part of the current answer, which must be chunked."""
        cast("_Cycle", self.cycle).write_part(part)

    def _tell_left(self) -> None:
        if self.on_left is not None:
            self.on_left()

    # Reading.

    def _parse_head(self, data: bytes) -> bytes:
        """Parse the bytes up to the end of the head; return those that follow it."""
        received_bytes = len(data)
        if not self._has_begun:
            data = data.lstrip(b"\r\n")  # blank lines before a request (RFC 9112, section 2.2)
        seam = self._head_tail + data
        end = seam.find(_END_OF_HEAD)
        size = len(data) if end < 0 else end + len(_END_OF_HEAD) - len(self._head_tail)
        self._head_tail = seam[-len(_END_OF_HEAD) + 1 :]
        rest = data[size:]
        self._head_bytes += received_bytes - len(rest)
        self._is_feeding_head = True
        self._feed(data[:size])
        self._is_feeding_head = False
        if self._reading is _Reading.HEAD and not self._is_refused:
            if self._head_bytes > self.limits.max_header_bytes:
                self._refuse_large("The request's address and headers")
            elif _HEAD not in self._timers:
                self._start(_HEAD, self.limits.header_timeout_s, self._end_late_head)
        return rest

    def _feed(self, data: bytes) -> None:
        asks_for_upgrade = False
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # The head is read again below: an error in this block would have it as its context.
            asks_for_upgrade = True
        except httptools.HttpParserError as exc:
            # The parser reports an exception of a callback as its own error.
            cause = exc.__context__
            is_invalid = not isinstance(exc, httptools.HttpParserCallbackError) or isinstance(
                cause, _InvalidHttpError | httptools.HttpParserError
            )
            if not is_invalid:
                _log.error("the gateway failed to read a request", exc_info=cause)
            if self._is_refused:
                return
            if is_invalid:
                problem = "Invalid HTTP request received. Send HTTP/1.1 (RFC 9112)."
                self._refuse(400, InvalidRequestError(problem, code="invalid_http"))
            else:
                self._refuse(500, exc)
        if asks_for_upgrade:
            # The head is complete, and asks for a protocol that we do not support. A server may
            # ignore that (RFC 9110, section 7.8), but the parser cannot: it treats the body as data
            # of the other protocol. So a new parser reads the same head without those headers.
            lines = [b"%s %s HTTP/%s" % (self._method, self.url, self._version)]
            for name, value in self.headers:
                if name in _UPGRADE_HEADERS:
                    continue
                kept = value
                if name == b"connection":
                    options = (option.strip() for option in value.split(b","))
                    kept = b", ".join(o for o in options if o.lower() not in _UPGRADE_HEADERS)
                lines.append(name + b": " + kept)
            self.parser = httptools.HttpRequestParser(self)
            self._feed(b"\r\n".join((*lines, b"", b"")))

    def _take_waiting(self) -> bytes:
        data = b"".join(self._waiting)
        self._waiting.clear()
        self.shared.waiting_bytes -= self._waiting_bytes
        self._waiting_bytes = 0
        return data

    # Callbacks of the parser (httptools).

    def on_message_begin(self) -> None:
        """Begin a request."""
        # Only the parser finds the end of a chunked body, so it also sees a pipelined next request.
        if not self._is_feeding_head:
            self._end_after_answer()
            raise _InvalidHttpError(
                "a request that is pipelined after a chunked body is not answered"
            )
        super().on_message_begin()
        self._has_begun = True
        self.on_left = None

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header. Trailers are dropped, because the gateway does not use them."""
        if self._reading is _Reading.HEAD:
            name = name.lower()
            if name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Begin to answer a request whose head is complete."""
        method, version = self.parser.get_method(), self.parser.get_http_version()
        if self.parser.should_upgrade():
            if method == b"CONNECT":
                raise _InvalidHttpError("CONNECT is not supported")
            self._method, self._version = method, version.encode()
            return
        size, hosts, length_bytes = len(self.url), 0, 0
        codings: list[bytes] = []
        for name, value in self.headers:
            size += len(name) + len(value) + 4
            if name == b"content-length":
                length_bytes = int(value)  # the parser refuses several lengths that differ
            elif name == b"transfer-encoding":
                codings.append(value.strip().lower())
            elif name == b"host":
                hosts += 1
        if version not in _VERSIONS or hosts > 1:
            raise _InvalidHttpError("unsupported HTTP version, or several Host headers")
        if size > self.limits.max_header_bytes:
            self._refuse_large("The request's address and headers")
            raise _InvalidHttpError("the request's address and headers are too large")
        if codings and codings != [b"chunked"]:  # the parser would accept `gzip, chunked`
            problem = "Only the transfer coding 'chunked' is supported. Use no other coding."
            self._refuse(501, InvalidRequestError(problem, code="unsupported_transfer_encoding"))
            raise _InvalidHttpError("unsupported transfer coding")
        address = httptools.parse_url(self.url)
        raw_path = address.path or b"/"
        if not raw_path.isascii():
            raise _InvalidHttpError("the path has characters that are not ASCII")
        path = raw_path.decode("ascii")
        scope = self.scope
        scope["method"], scope["http_version"] = method.decode("ascii"), version
        scope["path"] = urllib.parse.unquote(path) if "%" in path else path
        scope["raw_path"], scope["query_string"] = raw_path, address.query or b""
        self._stop(_HEAD)
        self.shared.idle.pop(self, None)
        self._reading = _Reading.CHUNKS if codings else _Reading.BODY
        self._framing_bytes, self._body_left_bytes = 0, length_bytes
        self.cycle = _Cycle(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=version != "1.0" and self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        self.cycle.loop = self.loop
        scope["extensions"] = self._extensions
        task = self.loop.create_task(self.cycle.run_asgi(self.app))  # pyrefly: ignore[bad-argument-type]  # any kind of ASGI
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    def on_body(self, body: bytes) -> None:
        """Buffer a part of the body until the app reads it."""
        self._framing_bytes = 0
        if self.cycle.response_complete:
            return
        self.cycle.body += body
        if len(self.cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        self.cycle.message_event.set()

    def on_message_complete(self) -> None:
        """Note the end of the request. The next one is read after this one is answered."""
        if self.parser.should_upgrade():
            return
        if self._body_left_bytes:
            raise _InvalidHttpError("the parser ended the body before content-length was reached")
        self._stop(_LINGER)
        if self.cycle.response_complete:
            self._expect_request()
        else:
            self._reading = _Reading.NOTHING
            self.cycle.more_body = False
            self.cycle.message_event.set()

    # Answering.

    def on_response_complete(self) -> None:
        """Read the next request, or give the client time to send the rest of the current one."""
        self.server_state.total_requests += 1
        if self.transport.is_closing() or self._is_refused:
            return
        if self._reading is _Reading.NOTHING:
            self._expect_request()
            if self._waiting:
                self.data_received(self._take_waiting())
        else:
            self._linger()
        self.flow.resume_reading()

    def _expect_request(self) -> None:
        self._reading = _Reading.HEAD
        self._head_bytes, self._head_tail, self._has_begun = 0, b"", False
        self.shared.idle[self] = None
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def _end_after_answer(self) -> None:
        """Ignore further bytes, and close the connection after the current answer.

        A client must expect that pipelined requests are not answered (RFC 9112, section 9.3.2).
        """
        self._is_refused = True
        self._take_waiting()
        if self.cycle.response_complete:
            self.transport.close()
        else:
            self.cycle.keep_alive = False

    def _watch_reader(self, unread_before_bytes: float = math.inf) -> None:
        """Abort if the client has read too little since the last check; otherwise check again."""
        unread_bytes = self.transport.get_write_buffer_size()
        if unread_bytes > unread_before_bytes - MIN_READ_BYTES:
            self.transport.abort()
        else:
            self._start(_READER, self.limits.write_timeout_s, self._watch_reader, unread_bytes)

    # Refusing.

    def _make_room(self) -> None:
        """Close the connection that has been idle longest; if all are busy, refuse this one."""
        shared = self.shared
        longest = next(iter(shared.idle), None)
        if longest is None:
            problem = f"The gateway has reached its limit of {shared.max_connections} connections."
            self._refuse(503, OverloadedError("overloaded", problem))
            self.transport.close()
        else:
            del shared.idle[longest]
            longest.transport.abort()
        shared.dropped += 1
        now_s = time.monotonic()
        if now_s >= shared.warned_s + WARNING_INTERVAL_S:
            _log.warning(
                "connection limit reached: limit=%d closed=%d (idle ones first); raise "
                "server.max_connections and the limit of open files (ulimit -n)",
                shared.max_connections,
                shared.dropped,
            )
            shared.warned_s, shared.dropped = now_s, 0

    def _end_late_head(self) -> None:
        if self._head_bytes:
            problem = f"The headers were not complete after {self.limits.header_timeout_s:g} s."
            self._refuse(408, InvalidRequestError(problem, code="request_timeout"))
        else:
            self.transport.close()

    def _refuse_large(self, part: str) -> None:
        problem = f"{part} are larger than {self.limits.max_header_bytes} bytes. Send fewer."
        self._refuse(431, InvalidRequestError(problem, code="headers_too_large"))

    def _refuse(self, status: int, error: Exception) -> None:
        """Answer with an error and close; if an answer has already begun, only close."""
        self._is_refused = True
        self._stop(_HEAD)
        if self.cycle is not None and not self.cycle.response_complete:
            # Tell the app, which waits for the rest of the request, that the client disconnected.
            self.cycle.disconnected = True
            self.cycle.waiting_for_100_continue = False
            self.cycle.message_event.set()
            self._tell_left()
            if self.cycle.response_started:
                self.transport.abort()
                return
        else:  # the app never receives this request, so it is logged here
            log_request({"status": status, "code": code_of(error)})
        body = error_body(error)
        headers = {"content-type": "application/json", "connection": "close", **retry_after(error)}
        lines = [f"{name}: {value}\r\n".encode() for name, value in headers.items()]
        lines.append(b"content-length: %d\r\n\r\n" % len(body))
        self.transport.write(b"".join((STATUS_LINE[status], *lines, body)))
        self._linger()

    def _linger(self) -> None:
        """Let the client send the rest of an answered request for a while, then close.

        The connection counts as idle: it is closed earlier if there are too many connections.
        """
        self._start(_LINGER, self.limits.linger_s, self.transport.abort)
        self.shared.idle[self] = None

    def _start(
        self, name: str, delay_s: float, callback: Callable[..., None], *arguments: object
    ) -> None:
        self._stop(name)
        self._timers[name] = self.loop.call_later(delay_s, callback, *arguments)

    def _stop(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()


class _Cycle(RequestResponseCycle):
    """One request and its answer.

    It lasts until the client has read all but 64 KB of the answer, so that the answer's memory is
    counted that long. The head leaves with the first part of the body, or else in the event loop's
    next iteration. uvloop sends each write at once, so a write for the head alone would take a
    seventh of a small request's processor time, and would wake the client twice.
    """

    loop: asyncio.AbstractEventLoop
    _head = b""
    """The head of the answer until it is written."""

    async def send(self, message: Any) -> None:  # noqa: ANN401 - uvicorn's own
        """Send a part of the answer, and wait until the client has read most of it.

        uvicorn waits before it sends a part, not afterwards. So the memory of the last part would
        no longer be counted although the client has not read it.
        """
        if self.flow.write_paused:
            await self._be_read()
        if self.disconnected:
            return
        if not self.response_started:
            self._head = self._head_of(message["status"], message.get("headers", ()))
            self.loop.call_soon(self._write_head)
            return
        if self.response_complete:
            raise RuntimeError("The application has sent a part after the end of its response.")
        body, more = message.get("body", b""), message.get("more_body", False)
        position = 0
        while len(body) - position > HIGH_WATER_LIMIT:
            self.write_part(body[position : position + HIGH_WATER_LIMIT])
            position += HIGH_WATER_LIMIT
            await self._be_read()
            if self.disconnected:
                return
        self.write_part(body[position:], is_last=not more)
        if more:
            await self._be_read()
            return
        if self.expected_content_length:
            raise RuntimeError("The response is shorter than its content-length.")
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()

    async def _be_read(self) -> None:
        """Wait until the client has read all but 64 KB."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()

    def write_part(self, part: bytes, *, is_last: bool = False) -> None:
        """Write a part of the body without a wait, and the head before it if it waits."""
        if self.scope["method"] == "HEAD":
            part, self.expected_content_length = b"", 0
        elif self.chunked_encoding:
            part = b"%x\r\n%b\r\n" % (len(part), part) if part else b""
            part += b"0\r\n\r\n" if is_last else b""
        else:
            self.expected_content_length -= len(part)
            if self.expected_content_length < 0:
                raise RuntimeError("The response is longer than its content-length.")
        if len(part) > MAX_JOINED_BYTES:
            self._write_head()
        head, self._head = self._head, b""
        if head or part:
            self.transport.write(head + part)

    def _write_head(self) -> None:
        """Write the head if it waits."""
        head, self._head = self._head, b""
        if head and not self.transport.is_closing():
            self.transport.write(head)

    def _head_of(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """Return the status line and the headers, as uvicorn does, but check them together."""
        self.response_started, self.waiting_for_100_continue = True, False
        headers = [*self.default_headers, *headers]  # with names in lower case (ASGI)
        names = [name for name, _ in headers]
        if HEADER_RE.search(b"".join(names)):
            raise RuntimeError("Invalid HTTP header name.")
        if HEADER_VALUE_RE.search(b"".join([value for _, value in headers])):
            raise RuntimeError("Invalid HTTP header value.")
        lines = [name + b": " + value for name, value in headers]
        if (b"transfer-encoding", b"chunked") in headers:
            self.chunked_encoding = True
        elif b"content-length" in names:
            self.expected_content_length = int(headers[names.index(b"content-length")][1])
            self.chunked_encoding = False
        elif self.scope["method"] != "HEAD" and status not in {204, 304}:
            self.chunked_encoding = True
            lines.append(b"transfer-encoding: chunked")
        has_close = False
        if b"connection" in names:
            options = b",".join([value for name, value in headers if name == b"connection"])
            has_close = b"close" in [option.strip() for option in options.lower().split(b",")]
        if has_close:
            self.keep_alive = False
        elif not self.keep_alive:
            lines.append(b"connection: close")
        return STATUS_LINE[status] + b"\r\n".join(lines) + b"\r\n\r\n"


def protocol_with_limits(limits: ConnectionLimits) -> type[BoundedProtocol]:
    """Return a protocol class with these limits; uvicorn creates an instance per connection."""
    shared = _Shared(limits.max_connections)
    return type("Protocol", (BoundedProtocol,), {"limits": limits, "shared": shared})


_VERSIONS = frozenset(("1.0", "1.1"))
"""Supported HTTP versions. The parser would also accept 2.0, and a missing version as 0.9."""

_UPGRADE_HEADERS = frozenset((b"upgrade", b"http2-settings"))
"""Headers and `Connection` options that ask for another protocol (RFC 9110, section 7.8)."""

_HEAD, _LINGER, _READER = "head", "linger", "reader"
"""Names of the timers."""
