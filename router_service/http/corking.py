"""Send the head of a response together with the first part of its body."""

from __future__ import annotations

import asyncio
from typing import Any

_HEAD = b"HTTP/1.1 "

MAX_JOINED_BYTES = 64 * 1024
"""Longest part that is copied to join the head; longer parts are sent separately."""


class CorkedTransport(asyncio.Transport):
    """A transport that delays a head until the body, or until the loop's next iteration.

    The server writes them separately, and uvloop sends each write at once: two system calls, and a
    client that wakes up twice. Joining them saves a seventh of a small request's CPU time.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        """Write to a transport."""
        super().__init__()
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._head = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write, or delay data that looks like a head."""
        if self._head and len(data) <= MAX_JOINED_BYTES:
            head, self._head = self._head, b""
            self._transport.write(head + bytes(data))
        elif self._head:
            self._uncork()
            self._transport.write(data)
        elif bytes(data[: len(_HEAD)]) == _HEAD:
            self._head = bytes(data)
            self._loop.call_soon(self._uncork)
        else:
            self._transport.write(data)

    def _uncork(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)

    def close(self) -> None:
        """Write the delayed data, and close."""
        self._uncork()
        self._transport.close()

    def abort(self) -> None:
        """Close at once; delayed data is lost."""
        self._head = b""
        self._transport.abort()

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that are not sent yet."""
        return len(self._head) + self._transport.get_write_buffer_size()

    def is_closing(self) -> bool:
        """Return whether the transport is closed, or about to be."""
        return self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 - asyncio's own
        """Return information about the connection."""
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        """Stop reading."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Continue reading."""
        self._transport.resume_reading()
