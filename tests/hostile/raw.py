"""HTTP/1.1 over a plain socket, for tests that send data that no HTTP library would send.

Answers are read by h11, which is strict.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import h11

READ_BYTES = 256 * 1024
KEPT_BYTES = 16 * 1024 * 1024
ANSWER_S = 10.0
"""Longest wait for an answer. A gateway that takes longer has stalled."""


class MalformedAnswerError(AssertionError):
    """The gateway sent bytes that are not a well-formed HTTP/1.1 response."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP response."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    is_whole: bool
    """Whether the body is complete by its framing."""

    def header(self, name: str) -> str | None:
        """Return a header's value; fails the test if the header comes twice."""
        values = [value for other, value in self.headers if other == name]
        assert len(values) < 2, f"{name} comes {len(values)} times"
        return values[0] if values else None

    @property
    def closes(self) -> bool:
        """Return whether the connection ends with this response."""
        return (self.header("connection") or "").lower() == "close" or not self.is_whole


class Connection:
    """One TCP connection to the gateway."""

    def __init__(self, port: int, *, receive_buffer_bytes: int | None = None) -> None:
        """Connect. A small receive buffer stops the sender soon if the client reads nothing."""
        self._socket = socket.socket()
        if receive_buffer_bytes is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self._socket.settimeout(ANSWER_S)
        self._socket.connect(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._unread = b""
        self.is_usable = True
        """Whether another request may be sent: no answer so far ended the connection."""

    def __enter__(self) -> Self:
        """Use the connection."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, _: TracebackType | None
    ) -> None:
        """Close the connection."""
        self.close()

    def send(self, *packets: bytes, pause_s: float = 0.0) -> bool:
        """Send packets with a pause between them; return False if the gateway has disconnected."""
        try:
            for index, packet in enumerate(packets):
                if index and pause_s:
                    time.sleep(pause_s)
                self._socket.sendall(packet)
        except (ConnectionError, TimeoutError):
            self.is_usable = False
            return False
        return True

    def flood(self, block: bytes, limit_bytes: int, limit_s: float) -> int:
        """Send a block repeatedly until a limit, or until the gateway disconnects.

        Returns the number of bytes sent.
        """
        self.is_usable = False
        deadline_s, sent_bytes = time.monotonic() + limit_s, 0
        with contextlib.suppress(ConnectionError, TimeoutError):
            while sent_bytes < limit_bytes and (left_s := deadline_s - time.monotonic()) > 0:
                self._socket.settimeout(left_s)
                sent_bytes += self._socket.send(block)
        self._socket.settimeout(ANSWER_S)
        return sent_bytes

    def read_answer(
        self, *, limit_bytes: int = 512 * 1024 * 1024, limit_s: float = ANSWER_S
    ) -> Answer | None:
        """Read one final response; None if the connection ended before its first byte.

        Stops after `limit_bytes` of body or `limit_s`: the answer is then not whole. Keeps the
        first and the last bytes of a body above `KEPT_BYTES`. Raises MalformedAnswerError, and
        AssertionError if nothing came in time.
        """
        deadline_s = time.monotonic() + limit_s
        reader = h11.Connection(h11.CLIENT)
        reader.send(h11.Request(method="GET", target="/", headers=[("host", "gateway")]))
        reader.send(h11.EndOfMessage())
        head: h11.Response | None = None
        body = _Kept()
        received, self._unread = self._unread, b""
        try:
            if received:
                reader.receive_data(received)
            while body.size < limit_bytes:
                event = reader.next_event()
                if event is h11.NEED_DATA:
                    part = self._receive(deadline_s)
                    if not part and not received:
                        self.is_usable = False
                        return None
                    received += part[:1]
                    reader.receive_data(part)
                elif isinstance(event, h11.Response):
                    head = event
                elif isinstance(event, h11.Data):
                    body.add(bytes(event.data))
                elif isinstance(event, h11.EndOfMessage):
                    self._unread = reader.trailing_data[0]
                    return self._answer(head, body, is_whole=_has_framing(head))
        except h11.RemoteProtocolError as exc:
            if head is None or "peer closed" not in str(exc):
                raise MalformedAnswerError(f"{exc}: {bytes(received[:200])!r}") from exc
        except TimeoutError as exc:
            if head is None:
                raise AssertionError(f"no answer in time, only {bytes(received[:200])!r}") from exc
        return self._answer(head, body, is_whole=False)

    def read_answers(self, count: int) -> list[Answer]:
        """Read `count` responses, or fewer if the gateway disconnects."""
        answers: list[Answer] = []
        while len(answers) < count and (answer := self.read_answer()) is not None:
            answers.append(answer)
            if not answer.is_whole:
                break
        return answers

    def is_silent(self, wait_s: float = 0.02) -> bool:
        """Return whether no bytes arrive that do not belong to a request."""
        if self._unread:
            return False
        self._socket.settimeout(wait_s)
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return True
        except ConnectionError:
            return True
        finally:
            self._socket.settimeout(ANSWER_S)

    def has_ended(self) -> bool:
        """Return whether the gateway has closed the connection."""
        self._socket.settimeout(0.01)
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return False
        except ConnectionError:
            return True
        finally:
            self._socket.settimeout(ANSWER_S)

    def finish_sending(self) -> None:
        """Send FIN; answers can still be read."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        self.is_usable = False

    def reset(self) -> None:
        """Close by RST."""
        with contextlib.suppress(OSError):
            linger = struct.pack("ii", 1, 0)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.close()

    def close(self) -> None:
        """Close by FIN, or by RST if unread data has arrived."""
        self.is_usable = False
        self._socket.close()

    def _receive(self, deadline_s: float) -> bytes:
        """Wait for more bytes; return none at the end of the connection."""
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._socket.settimeout(left_s)
        try:
            return self._socket.recv(READ_BYTES)
        except ConnectionError:
            return b""
        finally:
            self._socket.settimeout(ANSWER_S)

    def _answer(self, head: h11.Response | None, body: _Kept, *, is_whole: bool) -> Answer:
        assert head is not None
        headers = tuple((name.decode(), value.decode("latin-1")) for name, value in head.headers)
        answer = Answer(head.status_code, headers, body.joined(), is_whole)
        self.is_usable = self.is_usable and not answer.closes
        return answer


def _has_framing(head: h11.Response | None) -> bool:
    """Return whether an answer says where it ends. Otherwise, a cut would look like its end."""
    names = {name for name, _ in head.headers} if head else set()
    is_empty = head is not None and head.status_code in {204, 304}
    return is_empty or bool(names & {b"content-length", b"transfer-encoding"})


class _Kept:
    """The start and the end of a long body."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._kept_bytes = 0
        self._last = b""
        self.size = 0

    def add(self, part: bytes) -> None:
        self.size += len(part)
        if self._kept_bytes < KEPT_BYTES:
            self._parts.append(part)
            self._kept_bytes += len(part)
        else:
            self._last = (self._last + part)[-4096:]

    def joined(self) -> bytes:
        return b"".join((*self._parts, self._last))


def request_head(
    method: str, target: str, headers: Iterable[tuple[str, str]] | Mapping[str, str] = ()
) -> bytes:
    """Return a request line and headers without checking them."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    lines = [f"{method} {target} HTTP/1.1", "host: gateway", *(f"{n}: {v}" for n, v in pairs)]
    return "\r\n".join((*lines, "", "")).encode("latin-1")


def request(
    method: str,
    target: str,
    headers: Iterable[tuple[str, str]] | Mapping[str, str] = (),
    body: bytes | None = None,
) -> bytes:
    """Return a request; one with a body gets a content-length."""
    pairs: list[Any] = [*(headers.items() if isinstance(headers, Mapping) else headers)]
    if body is not None:
        pairs.append(("content-length", str(len(body))))
    return request_head(method, target, pairs) + (body or b"")
