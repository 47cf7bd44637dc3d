"""What runs while a client stays, and what becomes of it when the client leaves."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest
from starlette.types import Message

from router_service.http.asgi import WhileClientStays


class Client:
    """A client that may leave, and whose request was read before."""

    def __init__(self) -> None:
        self.left = asyncio.Event()

    async def receive(self) -> Message:
        """Wait until it leaves."""
        await self.left.wait()
        return {"type": "http.disconnect"}


def test_a_block_ends_quietly_when_the_client_leaves() -> None:
    """What is awaited is cancelled at once, and what follows the block is done."""

    async def serve() -> list[str]:
        client, seen = Client(), ["begun"]
        asyncio.get_running_loop().call_later(0.01, client.left.set)
        async with WhileClientStays(client.receive):
            await asyncio.sleep(60)
            seen.append("slept")
        return [*seen, "after"]

    assert asyncio.run(serve()) == ["begun", "after"]


def test_a_cancellation_from_elsewhere_goes_on() -> None:
    """A server that ends its tasks is obeyed, even where the client leaves in the same moment."""

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


def test_errors_leave_the_block_as_they_are() -> None:
    """Nothing is wrapped around what is raised within."""

    async def serve() -> None:
        async with WhileClientStays(Client().receive):
            raise KeyError("x")

    with pytest.raises(KeyError, match="x"):
        asyncio.run(serve())


def test_a_request_leaves_nothing_for_the_collector() -> None:
    """What watched a client goes with its request, and waits for no collection."""

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
