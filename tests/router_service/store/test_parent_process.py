"""Workers share records through the memory of their parent, and never wait long for it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from router_service.core.errors import StoreError
from router_service.store.parent_process import (
    SOCKET,
    ParentStore,
    encode,
    serve_workers,
)
from router_service.store.records import FeedbackMark, Records
from tests.stores import LIMITS

pytestmark = pytest.mark.anyio

Marks = Records[FeedbackMark]
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

EMPTY_REPLY = encode(None)


def mark(name: str) -> FeedbackMark:
    """Return a record."""
    return FeedbackMark(id=name)


@asynccontextmanager
async def parent(directory: Path, serve: Serve) -> AsyncIterator[Marks]:
    """Yield a worker's records whose parent behaves as `serve` does."""
    server = await asyncio.start_unix_server(serve, directory / SOCKET)
    store = ParentStore(directory)
    yield Records(store, FeedbackMark, list[str]().append, clock=itertools.count(0, 60).__next__)
    await store.aclose()
    server.close()


async def test_concurrent_requests_get_their_own_replies() -> None:
    """Many look-ups and writes on one connection do not mix."""
    async with serve_workers(LIMITS) as directory:
        parents = ParentStore(directory)
        store = Records(parents, FeedbackMark, pytest.fail)
        names = [f"{number}" for number in range(200)]
        await asyncio.gather(*(store.put(mark(name)) for name in names[::2]))
        found = await asyncio.gather(*(store.get(name) for name in names))
        assert found == [mark(name) if int(name) % 2 == 0 else None for name in names]
        await parents.aclose()


async def test_requests_to_a_parent_that_hangs_fail_in_time(tmp_path: Path) -> None:
    """A request fails within a second; its late reply is not taken for that of another request."""
    wakes = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await wakes.wait()
        writer.write(EMPTY_REPLY)  # of `get`: unknown
        await reader.readuntil(b"add")
        writer.write(encode(True))

    async with parent(tmp_path, hang) as store:
        async with asyncio.timeout(1):
            with pytest.raises(StoreError, match="TimeoutError"):
                await store.get("a")
        wakes.set()
        assert await store.add(mark("a"))


async def test_worker_connects_again(tmp_path: Path) -> None:
    """A closed connection fails the requests that wait, and the next one uses a new connection."""
    connections = 0

    async def close_first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"a")
        if connections > 1:
            writer.write(EMPTY_REPLY)
        else:
            writer.close()

    async with parent(tmp_path, close_first) as store:
        with pytest.raises(StoreError, match="ConnectionResetError"):
            await store.get("a")
        assert await store.get("a") is None
    with pytest.raises(StoreError):
        await store.get("a")
