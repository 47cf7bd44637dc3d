"""Blocks that run while a client is connected, and what happens when it disconnects."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest
from starlette.types import Message

from router_service.http.transfer import WhileClientStays


class Client:
    """Client that may disconnect, and whose request has been read."""

    def __init__(self) -> None:
        self.left = asyncio.Event()

    async def receive(self) -> Message:
        """Wait until the client disconnects."""
        await self.left.wait()
        return {"type": "http.disconnect"}


def test_block_ends_quietly_when_the_client_disconnects() -> None:
    """The awaited call is cancelled at once, and the code after the block runs."""

    async def serve() -> list[str]:
        client, seen = Client(), ["begun"]
        asyncio.get_running_loop().call_later(0.01, client.left.set)
        async with WhileClientStays(client.receive):
            await asyncio.sleep(60)
            seen.append("slept")
        return [*seen, "after"]

    assert asyncio.run(serve()) == ["begun", "after"]


def test_cancellation_by_the_server_propagates() -> None:
    """The server can end its tasks, even if the client disconnects at the same moment."""

    async def serve(client: Client) -> None:
        async with WhileClientStays(client.receive):
            await asyncio.sleep(60)

    async def exchange(has_left: bool) -> bool:
        client = Client()
        task = asyncio.create_task(serve(client))
        await asyncio.sleep(0.01)
        if has_left:
            client.left.set()
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    assert [asyncio.run(exchange(left)) for left in (False, True)] == [True, True]


def test_errors_leave_the_block_unchanged() -> None:
    """Errors that are raised within the block are not wrapped."""

    async def serve() -> None:
        async with WhileClientStays(Client().receive):
            raise KeyError("x")

    with pytest.raises(KeyError, match="x"):
        asyncio.run(serve())


def test_request_leaves_no_garbage_cycles() -> None:
    """The objects that watch a client are freed with its request, without a garbage collection."""

    async def serve() -> bool:
        watch = WhileClientStays(Client().receive)
        async with watch:
            await asyncio.sleep(0)
        gone = weakref.ref(watch)
        del watch
        for _ in range(3):
            await asyncio.sleep(0)
        return gone() is None

    gc.disable()
    try:
        assert asyncio.run(serve())
    finally:
        gc.enable()
