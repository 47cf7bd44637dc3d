"""Bodies that upstreams compress although they were asked not to."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import tracemalloc
import zlib
from collections.abc import Callable

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router_service.upstream.connection import MAX_PART_BYTES, Decompressor, codings_of


class Parts:
    """A body that comes in parts of a size."""

    def __init__(self, data: bytes, size: int) -> None:
        self._data = data
        self._size = size
        self.position = 0

    async def read(self) -> bytes:
        """Return the next part."""
        part = self._data[self.position : self.position + self._size]
        self.position += len(part)
        return part


async def iterate(parts: Parts, limit_bytes: int | None = None) -> list[bytes]:
    """Return the parts that a body is unpacked to, or the first of them."""
    body, found, size = Decompressor(parts.read), [], 0
    while part := await body.read():
        found.append(part)
        size += len(part)
        if limit_bytes is not None and size >= limit_bytes:
            break
    return found


PACKERS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress}


@settings(deadline=None)
@given(
    st.binary(max_size=300), st.integers(0, 5000), st.integers(1, 500), st.sampled_from([*PACKERS])
)
def test_any_body_is_unpacked_however_it_is_split(
    data: bytes, times: int, size: int, coding: str
) -> None:
    """What comes out is what was packed, in parts of at most 64 KB."""
    packed = PACKERS[coding](data * times)
    found = asyncio.run(iterate(Parts(packed, size)))
    assert b"".join(found) == data * times
    assert max(map(len, found), default=0) <= MAX_PART_BYTES


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=300), st.integers(1, 500), st.data())
def test_a_part_of_a_body_is_no_body(data: bytes, size: int, draw: st.DataObject) -> None:
    """An end that comes too early is an error wherever it is, and so is one that comes too late."""
    packed = gzip.compress(data)
    cut = draw.draw(st.integers(1, len(packed) - 1))
    for damaged in (packed[:cut], packed + packed[:cut]):
        with pytest.raises(httpx.DecodingError):
            asyncio.run(iterate(Parts(damaged, size)))


@settings(deadline=None)
@given(st.binary(max_size=200), st.integers(1, 50))
def test_nothing_else_is_raised(data: bytes, size: int) -> None:
    """Bytes of any kind are unpacked or refused."""
    for start in (b"", b"\x1f\x8b\x08\0", b"\x78\x9c"):
        with contextlib.suppress(httpx.DecodingError):
            asyncio.run(iterate(Parts(start + data, size)))


def test_no_more_is_unpacked_than_is_read() -> None:
    """Of a body that would become 100 MB, the first megabyte takes a few kilobytes."""
    packed = gzip.compress(bytes(100_000_000))
    parts = Parts(packed, 65536)
    tracemalloc.start()
    found = asyncio.run(iterate(parts, 1_000_000))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sum(map(len, found)) < 1_100_000
    assert peak_bytes < 2_000_000
    assert parts.position == 65536


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ([(b"content-encoding", b"gzip, gzip")], ["gzip", "gzip"]),
        ([(b"content-encoding", b"GZIP"), (b"content-encoding", b" br ")], ["gzip", "br"]),
        ([(b"content-encoding", b"identity,, ,identity")], []),
        ([(b"transfer-encoding", b"gzip, chunked")], ["gzip"]),
        ([(b"transfer-encoding", b"Chunked"), (b"x", b"gzip")], []),
    ],
)
def test_all_codings_are_found(headers: list[tuple[bytes, bytes]], found: list[str]) -> None:
    """Those of all lines count, in any case, and those of the transfer too."""
    assert codings_of(headers) == found
