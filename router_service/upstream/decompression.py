"""Reads bodies that upstreams compress although they were asked not to.

At most one level of gzip or zlib is accepted: two levels of 7 KB unpack to 8 GB. A single level
still unpacks to a thousand times its size, so no more is unpacked than somebody reads.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Iterable

import httpx

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


class Decompressed:
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
