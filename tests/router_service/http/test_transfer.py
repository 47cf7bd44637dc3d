"""Work that runs while a client is connected, and what happens when it disconnects."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextlib import suppress

import pytest
from starlette.requests import ClientDisconnect
from starlette.types import Message

from router_service.http.transfer import unless_client_leaves


class Client:
    """Client that may disconnect, and whose request has been read."""

    def __init__(self) -> None:
        self.left = asyncio.Event()

    async def receive(self) -> Message:
        """Wait until the client disconnects."""
        await self.left.wait()
        return {"type": "http.disconnect"}


def test_work_is_cancelled_when_the_client_disconnects() -> None:
    """The awaited call is cancelled at once, and the caller gets ClientDisconnect."""

    async def serve() -> list[str]:
        client, seen = Client(), ["begun"]

        async def work() -> None:
            await asyncio.sleep(60)
            seen.append("slept")

        asyncio.get_running_loop().call_later(0.01, client.left.set)
        with pytest.raises(ClientDisconnect):
            await unless_client_leaves(client.receive, work())
        await asyncio.sleep(0)  # the task itself is no longer cancelled
        return [*seen, "after"]

    assert asyncio.run(serve()) == ["begun", "after"]


def test_cancellation_by_the_server_propagates() -> None:
    """The server can end its tasks, even if the client disconnects at the same moment."""

    async def serve(client: Client) -> None:
        await unless_client_leaves(client.receive, asyncio.sleep(60))

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


def test_errors_of_the_work_propagate_unchanged() -> None:
    """Errors that the work raises are not wrapped."""

    async def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError, match="x"):
        asyncio.run(unless_client_leaves(Client().receive, fail()))


def test_request_leaves_no_garbage_cycles() -> None:
    """The objects that watch a client are freed with its request, without a garbage collection."""

    async def serve(*, leaves: bool) -> bool:
        client = Client()
        gone = weakref.ref(client)
        if leaves:
            asyncio.get_running_loop().call_soon(client.left.set)
        with suppress(ClientDisconnect):
            await unless_client_leaves(client.receive, asyncio.sleep(0.01))
        del client
        for _ in range(3):
            await asyncio.sleep(0)
        return gone() is None

    gc.disable()
    try:
        assert asyncio.run(serve(leaves=False))
        assert asyncio.run(serve(leaves=True))
    finally:
        gc.enable()
