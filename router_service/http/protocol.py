"""The server side of HTTP/1.1 connections, with a bound on everything a client can make us hold.

uvicorn's protocol accepts headers, trailers and pipelined requests of any size for any time, hands
the body of a request that asks for an upgrade to the parser as another request, and forgets a
client that leaves while another request of its connection waits. This class frames messages itself
and reads one request at a time; httptools still parses every byte.
"""

from __future__ import annotations

import asyncio
import logging
import time
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, cast

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from router_service.core.errors import InvalidRequestError, OverloadedError
from router_service.http.corking import CorkedTransport
from router_service.http.errors import error_body, retry_after
from router_service.telemetry.logs import log_request

MIN_READ_BYTES = 16 * 1024
"""How much of a waiting answer a client must read in each `write_timeout_s`."""

MAX_WAITING_BYTES = 512 * 1024
MAX_ALL_WAITING_BYTES = 16 * 1024 * 1024
"""Unparsed bytes of pipelined requests that one connection may hold, and all of a process."""

WARNING_INTERVAL_S = 10.0

_END_OF_HEAD = b"\r\n\r\n"

_log = logging.getLogger("switchcraft.server")


class _Reading(Enum):
    """What the next byte of a connection belongs to."""

    HEAD = "request line and headers"
    BODY = "a body of known length"
    CHUNKS = "a chunked body or its trailers"
    NOTHING = "a request that waits until the one before is answered"


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What one connection, and all connections of a process, may use."""

    max_header_bytes: int
    """Request line and headers of one request; also its trailers and each chunk's framing."""
    header_timeout_s: float
    """From the connection, or from a request's first byte, to the end of its headers."""
    write_timeout_s: float
    """How long a client may read nothing of an answer that waits for it."""
    linger_s: float = 2.0
    """How long a refused request may go on being sent: closed at once, the client would lose the
    answer together with the connection (RFC 9112, section 9.6)."""
    max_connections: int = 4096
    """Beyond it the connection that has been idle for longest is closed."""


@dataclass(slots=True)
class _Shared:
    """What the connections of one process share."""

    max_connections: int
    idle: dict[BoundedProtocol, None] = field(default_factory=dict)
    """Connections without a request to answer, the one that has waited longest first."""
    waiting_bytes: int = 0
    """Unparsed bytes of pipelined requests."""
    dropped: int = 0
    """Connections closed for want of room since the last warning."""
    warned_s: float = -WARNING_INTERVAL_S


class BoundedProtocol(HttpToolsProtocol):
    """One client connection; make a class with its limits by `bounded`."""

    limits: ClassVar[ConnectionLimits]
    shared: ClassVar[_Shared]

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - uvicorn's own
        """Expect a first request."""
        super().__init__(*args, **kwargs)
        self._reading = _Reading.HEAD
        self._head_bytes = 0
        """Of the request line and headers, as far as they have come."""
        self._head_tail = b""
        """The last bytes of an unfinished head: its end may be split over two packets."""
        self._has_begun = False
        self._body_left_bytes = 0
        self._framing_bytes = 0
        """Read of a chunked body since its last byte of content: extensions and trailers."""
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._is_feeding_head = False
        self._is_refused = False
        """Whether all further bytes are ignored."""
        self._method = self._version = b""
        self._timers: dict[str, asyncio.TimerHandle] = {}

    # What the event loop reports (asyncio.Protocol).

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first request; with too many connections, close an idle one."""
        super().connection_made(CorkedTransport(cast("asyncio.Transport", transport)))
        self._start(_HEAD, self.limits.header_timeout_s, self._end_late_head)
        if len(self.connections) > self.shared.max_connections:
            self._make_room()
        self.shared.idle[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection; a request that is being answered learns that its client left."""
        for name in tuple(self._timers):
            self._stop(name)
        self.shared.idle.pop(self, None)
        self._take_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what belongs to the present request, and keep what follows it for later."""
        self._unset_keepalive_if_required()
        while data and not self._is_refused:
            if self._reading is _Reading.NOTHING:
                self._wait_with(data)
                return
            data = self._parse(data)

    def pause_writing(self) -> None:
        """Watch a client that reads more slowly than it is answered."""
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        """Stop watching: the client has read."""
        super().resume_writing()
        self._stop(_READER)

    # Reading.

    def _parse(self, data: bytes) -> bytes:
        """Feed the parser up to the end of the head or of the body; return what is left.

        The parser must never see two requests at once: it would begin the second one before the
        first is answered, and cannot be told to stop.
        """
        if self._reading is _Reading.HEAD:
            return self._parse_head(data)
        if self._reading is _Reading.BODY:
            part = data[: self._body_left_bytes]
            self._body_left_bytes -= len(part)
            self._feed(part)
            return data[len(part) :]
        self._framing_bytes += len(data)  # `on_body` sets it back
        self._feed(data)
        if self._framing_bytes > self.limits.max_header_bytes and not self._is_refused:
            self._refuse_large("The request's chunk extensions and trailers")
        return b""

    def _parse_head(self, data: bytes) -> bytes:
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
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # The head is complete, and asks for a protocol that we do not speak. A server may
            # ignore that (RFC 9110, section 7.8), which the parser cannot: it takes the body for
            # the other protocol. Another parser reads the same head without the question.
            self.parser = httptools.HttpRequestParser(self)
            self._feed(self._plain_head())
        except httptools.HttpParserError:
            if not self._is_refused:
                problem = "Invalid HTTP request received. Send HTTP/1.1 (RFC 9112)."
                self._refuse(400, InvalidRequestError(problem, code="invalid_http"))

    def _plain_head(self) -> bytes:
        """Return the head that was just parsed, without what asks for an upgrade."""
        lines = [b"%s %s HTTP/%s" % (self._method, self.url, self._version)]
        for name, value in self.headers:
            if name in _UPGRADE_HEADERS:
                continue
            kept = value
            if name == b"connection":
                options = (option.strip() for option in value.split(b","))
                kept = b", ".join(o for o in options if o.lower() not in _UPGRADE_HEADERS)
            lines.append(name + b": " + kept)
        return b"\r\n".join((*lines, b"", b""))

    def _wait_with(self, data: bytes) -> None:
        """Keep a part of the next request until the present one is answered.

        The connection is read on even if nothing more is kept: only so is it known when the client
        leaves, for TCP delivers the end of a connection after its data.
        """
        size_bytes, shared = len(data), self.shared
        self._waiting.append(data)
        self._waiting_bytes += size_bytes
        shared.waiting_bytes += size_bytes
        is_too_much = self._waiting_bytes > MAX_WAITING_BYTES
        if is_too_much or shared.waiting_bytes > MAX_ALL_WAITING_BYTES:
            self._end_after_answer()

    def _take_waiting(self) -> bytes:
        data = b"".join(self._waiting)
        self._waiting.clear()
        self.shared.waiting_bytes -= self._waiting_bytes
        self._waiting_bytes = 0
        return data

    # What the parser reports (httptools).

    def on_message_begin(self) -> None:
        """Begin a request."""
        if not self._is_feeding_head:  # behind a chunked body, whose end only the parser knows
            self._end_after_answer()
            raise ValueError("stops the parser")
        super().on_message_begin()
        self._has_begun = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header. Trailers are dropped: nothing that we serve has a use for them."""
        if self._reading is _Reading.HEAD:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin to answer a request whose head is complete."""
        method, version = self.parser.get_method(), self.parser.get_http_version()
        if self.parser.should_upgrade():
            if method == b"CONNECT":
                raise ValueError("a gateway is no tunnel")
            self._method, self._version = method, version.encode()
            return
        size, hosts, length_bytes = len(self.url), 0, 0
        codings: list[bytes] = []
        for name, value in self.headers:
            size += len(name) + len(value) + 4
            if name == b"content-length":
                length_bytes = int(value)  # the parser refuses lengths that differ
            elif name == b"transfer-encoding":
                codings.append(value.strip().lower())
            elif name == b"host":
                hosts += 1
        if version not in _VERSIONS or hosts > 1:
            raise ValueError("stops the parser")
        if size > self.limits.max_header_bytes:
            self._refuse_large("The request's address and headers")
            raise ValueError("stops the parser")
        if codings and codings != [b"chunked"]:  # the parser takes `gzip, chunked` too
            problem = "Send the body without a transfer coding other than 'chunked'."
            self._refuse(501, InvalidRequestError(problem, code="unsupported_transfer_encoding"))
            raise ValueError("stops the parser")
        address = httptools.parse_url(self.url)
        raw_path = address.path or b"/"
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
        self._start_asgi_task(self.cycle, self.app)

    def on_body(self, body: bytes) -> None:
        """Keep a part of the body until the app reads it."""
        self._framing_bytes = 0
        if self.cycle.response_complete:
            return
        self.cycle.body += body
        if len(self.cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        self.cycle.message_event.set()

    def on_message_complete(self) -> None:
        """End a request; the next one is read once this one is answered."""
        if self.parser.should_upgrade():
            return
        if self._body_left_bytes:
            raise ValueError("the parser and we disagree about where the request ends")
        self._stop(_LINGER)
        if self.cycle.response_complete:
            self._expect_request()
        else:
            self._reading = _Reading.NOTHING
            self.cycle.more_body = False
            self.cycle.message_event.set()

    # Answering.

    def on_response_complete(self) -> None:
        """Read the next request, or give the present one a moment to be sent whole."""
        self.server_state.total_requests += 1
        if self.transport.is_closing() or self._is_refused:
            return
        if self._reading is _Reading.NOTHING:
            self._expect_request()
            if data := self._take_waiting():
                self.data_received(data)
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
        """Ignore what else the client sends, and close the connection after the present answer.

        A client must expect that what it pipelined goes unanswered (RFC 9112, section 9.3.2).
        """
        self._is_refused = True
        self._take_waiting()
        if self.cycle.response_complete:
            self.transport.close()
        else:
            self.cycle.keep_alive = False

    def _watch_reader(self) -> None:
        unread_bytes = self.transport.get_write_buffer_size()
        self._start(_READER, self.limits.write_timeout_s, self._check_reader, unread_bytes)

    def _check_reader(self, unread_before_bytes: int) -> None:
        unread_bytes = self.transport.get_write_buffer_size()
        if unread_bytes > unread_before_bytes - MIN_READ_BYTES:
            self.transport.abort()
        else:
            self._watch_reader()

    # Refusing.

    def _make_room(self) -> None:
        """Close the connection that has been idle for longest, else refuse this one."""
        shared = self.shared
        longest = next(iter(shared.idle), None)
        if longest is None:
            problem = f"The gateway holds {shared.max_connections} connections, its limit."
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
            problem = f"The headers took more than {self.limits.header_timeout_s:g} s."
            self._refuse(408, InvalidRequestError(problem, code="request_timeout"))
        else:
            self.transport.close()

    def _refuse_large(self, part: str) -> None:
        problem = f"{part} are larger than {self.limits.max_header_bytes} bytes. Send fewer."
        self._refuse(431, InvalidRequestError(problem, code="headers_too_large"))

    def _refuse(self, status: int, error: InvalidRequestError | OverloadedError) -> None:
        """Answer with an error and close; if another answer has begun, just close."""
        self._is_refused = True
        self._stop(_HEAD)
        if self.cycle is not None and not self.cycle.response_complete:
            # The app, which waits for the rest of this request, is told that its client has left.
            self.cycle.disconnected = True
            self.cycle.waiting_for_100_continue = False
            self.cycle.message_event.set()
            if self.cycle.response_started:
                self.transport.abort()
                return
        else:  # the app never sees this request
            code = error.code if isinstance(error, InvalidRequestError) else error.reason
            log_request({"status": status, "code": code})
        body = error_body(error)
        headers = {"content-type": "application/json", "connection": "close", **retry_after(error)}
        lines = [f"{name}: {value}\r\n".encode() for name, value in headers.items()]
        lines.append(b"content-length: %d\r\n\r\n" % len(body))
        self.transport.write(b"".join((STATUS_LINE[status], *lines, body)))
        self._linger()

    def _linger(self) -> None:
        """Let the client send the rest of an answered request, unless others need the room."""
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
    """One request and its answer; ends when the client has taken all but the last 64 KB."""

    async def send(self, message: Any) -> None:  # noqa: ANN401 - uvicorn's own
        """Send a part of the answer, and wait for a client that does not read it.

        uvicorn waits before a part and not after it: an answer in one part would be over at once,
        however large, and nobody would account for the memory that it takes until it is read.
        """
        if len(message.get("body", b"")) > HIGH_WATER_LIMIT and not message.get("more_body"):
            await super().send(message | {"more_body": True})
            message = message | {"body": b""}
        await super().send(message)


def protocol_with_limits(limits: ConnectionLimits) -> type[BoundedProtocol]:
    """Return the protocol class with these limits; uvicorn makes an instance per connection."""
    shared = _Shared(limits.max_connections)
    return type("Protocol", (BoundedProtocol,), {"limits": limits, "shared": shared})


_VERSIONS = frozenset(("1.0", "1.1"))
"""The parser also takes HTTP/0.9, a request line without a version, and the number 2.0."""

_UPGRADE_HEADERS = frozenset((b"upgrade", b"http2-settings"))
"""Headers, and options of `Connection`, that ask for another protocol (RFC 9110, section 7.8)."""

_HEAD, _LINGER, _READER = "head", "linger", "reader"
"""Why a timer runs."""
