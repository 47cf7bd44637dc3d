"""HTTP/1.1 over a plain socket, for tests that send data that no HTTP library would send."""

from __future__ import annotations

import contextlib
import http.client
import socket
import struct
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from types import MappingProxyType

READ_BYTES = 256 * 1024
ANSWER_S = 60.0
"""Longest wait for an answer. A gateway that takes longer has stalled, also on a busy machine."""
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP response, or what arrived of it."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes
    is_whole: bool
    """Whether the body is complete by its framing."""

    @property
    def closes(self) -> bool:
        """Return whether the connection ends with this response."""
        return self.headers.get("connection", "").lower() == "close" or not self.is_whole


class Connection(closing["Connection"]):
    """One TCP connection to the gateway, which a `with` block closes."""

    def __init__(self, port: int, *, receive_buffer_bytes: int | None = None) -> None:
        """Connect. A small receive buffer stops the sender soon if the client reads nothing."""
        super().__init__(self)
        self._socket = socket.socket()
        if receive_buffer_bytes is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self._socket.settimeout(ANSWER_S)
        self._socket.connect(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.is_usable = True
        """Whether another request may be sent: no answer so far ended the connection."""

    def send(self, *packets: bytes) -> bool:
        """Send packets; return False if the gateway has disconnected."""
        try:
            for packet in packets:
                self._socket.sendall(packet)
        except (ConnectionError, TimeoutError):
            self.is_usable = False
            return False
        return True

    def flood(self, block: bytes, limit_bytes: int, limit_s: float) -> None:
        """Send a block repeatedly until a limit, or until the gateway disconnects."""
        self.is_usable = False
        deadline_s, sent_bytes = time.monotonic() + limit_s, 0
        with contextlib.suppress(ConnectionError, TimeoutError):
            while sent_bytes < limit_bytes and (left_s := deadline_s - time.monotonic()) > 0:
                self._socket.settimeout(left_s)
                sent_bytes += self._socket.send(block)
        self._socket.settimeout(ANSWER_S)

    def read_answer(
        self, *, limit_bytes: int = 64 * 1024 * 1024, limit_s: float = ANSWER_S
    ) -> Answer | None:
        """Read one final response; None if the connection ended before its first byte.

        Stops after `limit_bytes` of body or `limit_s`: the answer is then not whole. Raises
        http.client.HTTPException for a malformed head, and TimeoutError if no head came in time.
        """
        deadline_s = time.monotonic() + limit_s
        self._socket.settimeout(limit_s)
        response = http.client.HTTPResponse(self._socket)
        try:
            response.begin()
        except ConnectionError:
            self.is_usable = False
            return None
        body, is_whole = b"", False
        with contextlib.suppress(ConnectionError, TimeoutError, http.client.IncompleteRead):
            while len(body) < limit_bytes:
                self._socket.settimeout(max(deadline_s - time.monotonic(), 0.001))
                if not (part := response.read(READ_BYTES)):
                    # Without framing, a cut would look like the body's end.
                    is_whole = response.chunked or response.length == 0
                    break
                body += part
        self._socket.settimeout(ANSWER_S)
        answer = Answer(response.status, response.headers, body, is_whole)
        self.is_usable = self.is_usable and not answer.closes
        return answer

    def has_ended(self) -> bool:
        """Return whether the gateway has closed the connection."""
        return self._peek() == b""

    def is_silent(self) -> bool:
        """Return whether no bytes arrive that do not belong to a request."""
        return not self._peek()

    def _peek(self) -> bytes | None:
        """Return the next byte, b"" if the connection has ended, and None if nothing arrives."""
        self._socket.settimeout(0.02)
        try:
            return self._socket.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return None
        except ConnectionError:
            return b""
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


def request_head(method: str, target: str, headers: Mapping[str, str] = NO_HEADERS) -> bytes:
    """Return a request line and headers without checking them."""
    lines = [f"{method} {target} HTTP/1.1", "host: gateway"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join((*lines, "", "")).encode("latin-1")


def request(
    method: str,
    target: str,
    headers: Mapping[str, str] = NO_HEADERS,
    body: bytes | None = None,
) -> bytes:
    """Return a request; one with a body gets a content-length."""
    length = {} if body is None else {"content-length": str(len(body))}
    return request_head(method, target, {**headers, **length}) + (body or b"")
