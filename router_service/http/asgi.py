"""Sends parts of an answer, and notices that the client left."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import TracebackType
from typing import TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Send

RawHeaders = list[tuple[bytes, bytes]]

T = TypeVar("T")


class WhileClientStays:
    """Runs a block that is cancelled, and left quietly, once the client closes its connection.

    The request's body must be read. A task that waits, and not anyio's group of tasks: that takes
    0.08 ms of CPU a request, a task 0.015 ms.
    """

    def __init__(self, receive: Receive) -> None:
        """Watch a connection, while the block runs."""
        self._receive = receive
        self._has_left = False

    async def __aenter__(self) -> None:
        """Begin to watch."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - whoever serves a request is a task
        self._task, self._cancellations = task, task.cancelling()
        self._watch = asyncio.create_task(self._cancel_when_gone())

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, _: TracebackType | None
    ) -> bool:
        """Leave; a cancellation from elsewhere goes on, as asyncio.Timeout has it."""
        self._watch.cancel()
        del self._watch  # whose traceback holds this: a circle that only the collector would end
        is_ours = self._has_left and self._task.uncancel() <= self._cancellations
        return is_ours and isinstance(exc, asyncio.CancelledError)

    async def _cancel_when_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._has_left = True
        self._task.cancel()


async def unless_client_leaves(receive: Receive, work: Awaitable[T]) -> T:
    """Return what a coroutine returns. If the client leaves, cancel it, raise ClientDisconnect.

    The request's body must be read.
    """
    async with WhileClientStays(receive):
        return await work
    raise ClientDisconnect


async def start(send: Send, status: int, headers: RawHeaders) -> None:
    """Send the status and the headers."""
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def send_part(send: Send, body: bytes, *, more: bool) -> None:
    """Send a part of the body; waits for a client that reads slowly."""
    await send({"type": "http.response.body", "body": body, "more_body": more})


async def send_whole(send: Send, status: int, headers: RawHeaders, body: bytes) -> None:
    """Send an answer at once."""
    await start(send, status, [*headers, (b"content-length", b"%d" % len(body))])
    await send_part(send, body, more=False)
