"""HTTP client that can disconnect early or read slowly, as real clients do."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import httptools

TIMEOUT_S = 60.0
"""Longest wait for a complete answer."""

_MAX_IDLE_S = 20.0
"""Longest reuse of an idle connection; the gateway keeps it open for 75 s."""
_READ_BYTES = 64 * 1024
_SLOW_READ_BYTES = 4096
_SLOW_PAUSE_S = 0.01


class Manner(StrEnum):
    """Behavior of a client."""

    PATIENT = "patient"
    """Reads the complete answer."""
    LEAVES_HALFWAY = "leaves halfway"
    """Disconnects after half of the request."""
    LEAVES_BEFORE = "leaves before the answer"
    LEAVES_WITHIN = "leaves within the answer"
    READS_SLOWLY = "reads slowly"
    """Reads 4 KB every 10 ms, with a small receive buffer."""


@dataclass(slots=True)
class Answer:
    """One answer of the gateway."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    is_complete: bool = False


class NoAnswerError(Exception):
    """The connection ended, or time ran out, before the answer was complete."""


class _Connection:
    """Keep-alive connection that collects one answer at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.idle_since_s = 0.0

    def begin(self) -> Answer:
        self._parser = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._answer = Answer()
        return self._answer

    async def read_on(self, limit_bytes: int) -> None:
        """Read one part of the answer; raise NoAnswerError at the end of the connection."""
        data = await self.reader.read(limit_bytes)
        if not data:
            raise NoAnswerError("the gateway closed the connection before the end of its answer")
        self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._answer.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._answer.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        self._answer.body = b"".join(self._parts)
        self._answer.is_complete = True

    @property
    def stays_open(self) -> bool:
        return self._answer.is_complete and self._parser.should_keep_alive()


class Client:
    """Client that opens as many connections as it needs at a time."""

    def __init__(self, port: int) -> None:
        """Create a client for the gateway at a local port."""
        self._port = port
        self._idle: list[_Connection] = []

    async def ask(self, request: bytes, manner: Manner = Manner.PATIENT) -> Answer:
        """Send a request; return its answer, which is incomplete if the client disconnected.

        Raises NoAnswerError if the complete answer does not arrive.
        """
        is_slow = manner is Manner.READS_SLOWLY
        connection = await (self._open_slow() if is_slow else self._open())
        answer = connection.begin()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await self._exchange(connection, request, manner, answer)
        except TimeoutError:
            raise NoAnswerError(
                f"no complete answer within {TIMEOUT_S:.0f} s; status {answer.status}"
            ) from None
        except (OSError, httptools.HttpParserError) as exc:
            raise NoAnswerError(f"{type(exc).__name__}: {exc}; status {answer.status}") from exc
        finally:
            if connection.stays_open and not is_slow:
                connection.idle_since_s = time.monotonic()
                self._idle.append(connection)
            else:
                connection.writer.transport.abort()
        return answer

    def close(self) -> None:
        """Close all connections."""
        for connection in self._idle:
            connection.writer.close()
        self._idle.clear()

    async def _exchange(
        self, connection: _Connection, request: bytes, manner: Manner, answer: Answer
    ) -> None:
        if manner is Manner.LEAVES_HALFWAY:
            connection.writer.write(request[: len(request) // 2])
            await connection.writer.drain()
            return
        connection.writer.write(request)
        if manner is Manner.LEAVES_BEFORE:
            await connection.writer.drain()
            return
        while not answer.is_complete:
            if manner is Manner.READS_SLOWLY:
                await asyncio.sleep(_SLOW_PAUSE_S)
                await connection.read_on(_SLOW_READ_BYTES)
            else:
                await connection.read_on(_READ_BYTES)
            if manner is Manner.LEAVES_WITHIN:
                return

    async def _open(self) -> _Connection:
        now_s = time.monotonic()
        while self._idle:
            connection = self._idle.pop()
            is_old = now_s - connection.idle_since_s > _MAX_IDLE_S
            if not is_old and not connection.reader.at_eof():
                return connection
            connection.writer.close()
        return _Connection(*await asyncio.open_connection("127.0.0.1", self._port))

    async def _open_slow(self) -> _Connection:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SLOW_READ_BYTES)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self._port))
        streams = await asyncio.open_connection(sock=sock, limit=_SLOW_READ_BYTES)
        return _Connection(*streams)


def frame(method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> bytes:
    """Return a request as bytes, with its content length and host."""
    lines = {"host": "127.0.0.1", "content-type": "application/json", **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"{method} {path} HTTP/1.1\r\n{head}content-length: {len(body)}\r\n\r\n".encode() + body


def frame_chunked(path: str, headers: Mapping[str, str], parts: list[bytes]) -> bytes:
    """Return a POST with a chunked body and no content length."""
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    start = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{head}transfer-encoding: chunked\r\n\r\n"
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return start.encode() + chunks + b"0\r\n\r\n"
