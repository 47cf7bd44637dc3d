"""HTTP/1.1 over a plain socket, for tests that send data that no HTTP library would send.

The reader is strict: a test fails if parsers could read an answer differently.
"""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

READ_BYTES = 256 * 1024
ANSWER_S = 10.0
"""Longest wait for an answer. A gateway that takes longer has stalled."""

_STATUS_LINE = re.compile(rb"HTTP/1\.1 ([1-9]\d\d) ?[\x20-\x7e]*")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*((?:[\x21-\x7e\x80-\xff \t])*)")


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
    raw_head: bytes = b""

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
        self._unread = bytearray()
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
        self,
        *,
        to_head: bool = False,
        limit_bytes: int = 512 * 1024 * 1024,
        limit_s: float = ANSWER_S,
        keep_bytes: int = 16 * 1024 * 1024,
    ) -> Answer | None:
        """Read one final response; None if the connection ended before its first byte.

        Stops after `limit_bytes` of body or `limit_s`: the answer is then not whole. Keeps the
        first and the last bytes of a body above `keep_bytes`. Raises MalformedAnswerError, and
        AssertionError if nothing came in time.
        """
        deadline_s = time.monotonic() + limit_s
        while True:
            head = self._read_head(deadline_s)
            if head is None:
                self.is_usable = False
                return None
            status, headers = _parse_head(head)
            if status >= 200:
                break
        body, is_whole = b"", True
        if not to_head and status not in {204, 304}:
            body, is_whole = self._read_body(headers, limit_bytes, keep_bytes, deadline_s)
        answer = Answer(status, headers, body, is_whole, head)
        self.is_usable = self.is_usable and not answer.closes
        return answer

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

    def _receive(self, deadline_s: float) -> bool:
        """Wait for more bytes; return False at the end of the connection."""
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._socket.settimeout(left_s)
        try:
            part = self._socket.recv(READ_BYTES)
        except ConnectionError:
            return False
        finally:
            self._socket.settimeout(ANSWER_S)
        self._unread += part
        return bool(part)

    def _read_head(self, deadline_s: float) -> bytes | None:
        while (end := self._unread.find(b"\r\n\r\n")) < 0:
            try:
                if self._receive(deadline_s):
                    continue
            except TimeoutError as exc:
                raise AssertionError(
                    f"no answer in time, only {bytes(self._unread[:200])!r}"
                ) from exc
            if self._unread:
                raise MalformedAnswerError(f"cut within the head: {bytes(self._unread[:200])!r}")
            return None
        head = bytes(self._unread[:end])
        del self._unread[: end + 4]
        return head

    def _read_body(
        self,
        headers: Sequence[tuple[str, str]],
        limit_bytes: int,
        keep_bytes: int,
        deadline_s: float,
    ) -> tuple[bytes, bool]:
        lengths = [value for name, value in headers if name == "content-length"]
        codings = [value for name, value in headers if name == "transfer-encoding"]
        if len(lengths) + len(codings) != 1:
            raise MalformedAnswerError(f"lengths {lengths} and transfer codings {codings}")
        kept = _Kept(keep_bytes)
        try:
            if lengths:
                left = int(lengths[0])
                while left and kept.size < limit_bytes:
                    if not self._unread and not self._receive(deadline_s):
                        return kept.joined(), False
                    left -= self._move(left, kept)
                return kept.joined(), not left
            return self._read_chunks(kept, limit_bytes, deadline_s)
        except TimeoutError:
            return kept.joined(), False

    def _read_chunks(self, kept: _Kept, limit_bytes: int, deadline_s: float) -> tuple[bytes, bool]:
        while kept.size < limit_bytes:
            while (end := self._unread.find(b"\r\n")) < 0:
                if not self._receive(deadline_s):
                    return kept.joined(), False
            line = bytes(self._unread[:end])
            if not re.fullmatch(rb"[0-9a-fA-F]{1,8}", line):
                raise MalformedAnswerError(f"a chunk's size is {line[:40]!r}")
            del self._unread[: end + 2]
            size = left = int(line, 16)
            while left:
                if not self._unread and not self._receive(deadline_s):
                    return kept.joined(), False
                left -= self._move(left, kept)
            while len(self._unread) < 2:
                if not self._receive(deadline_s):
                    return kept.joined(), False
            if self._unread[:2] != b"\r\n":
                raise MalformedAnswerError(f"behind a chunk comes {bytes(self._unread[:20])!r}")
            del self._unread[:2]
            if not size:
                return kept.joined(), True
        return kept.joined(), False

    def _move(self, most: int, kept: _Kept) -> int:
        part = bytes(self._unread[:most])
        del self._unread[: len(part)]
        kept.add(part)
        return len(part)


class _Kept:
    """The start and the end of a long body."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._parts: list[bytes] = []
        self._kept_bytes = 0
        self._last = b""
        self.size = 0

    def add(self, part: bytes) -> None:
        self.size += len(part)
        if self._kept_bytes < self._most_bytes:
            self._parts.append(part)
            self._kept_bytes += len(part)
        else:
            self._last = (self._last + part)[-4096:]

    def joined(self) -> bytes:
        return b"".join((*self._parts, self._last))


def _parse_head(head: bytes) -> tuple[int, tuple[tuple[str, str], ...]]:
    first, *lines = head.split(b"\r\n")
    status_line = _STATUS_LINE.fullmatch(first)
    if status_line is None:
        raise MalformedAnswerError(f"the status line is {first[:200]!r}")
    headers = []
    for line in lines:
        header = _HEADER.fullmatch(line)
        if header is None:
            raise MalformedAnswerError(f"a header line is {line[:200]!r}")
        headers.append((header[1].decode().lower(), header[2].strip().decode("latin-1")))
    return int(status_line[1]), tuple(headers)


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
