"""Send parts of a response, and notice that the client has left."""

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
    """Context manager that cancels its block, quietly, once the client closes its connection.

    The request's body must have been read. A plain task watches the connection: a task group of
    anyio takes 0.08 ms of CPU per request, a task 0.015 ms.
    """

    def __init__(self, receive: Receive) -> None:
        """Watch a connection while the block runs."""
        self._receive = receive
        self._has_left = False

    async def __aenter__(self) -> None:
        """Start to watch."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a request is always served by a task
        self._task, self._cancellations = task, task.cancelling()

        async def cancel_when_gone() -> None:
            while (await self._receive())["type"] != "http.disconnect":
                pass
            self._has_left = True
            task.cancel()

        self._watch = asyncio.create_task(cancel_when_gone())

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, _: TracebackType | None
    ) -> bool:
        """Stop; a cancellation from elsewhere is propagated, as by `asyncio.Timeout`."""
        self._watch.cancel()
        del self._watch  # its traceback refers to this object: a cycle for the garbage collector
        is_ours = self._has_left and self._task.uncancel() <= self._cancellations
        return is_ours and isinstance(exc, asyncio.CancelledError)


async def unless_client_leaves(receive: Receive, work: Awaitable[T]) -> T:
    """Return the result of `work`; if the client leaves, cancel it and raise ClientDisconnect.

    The request's body must have been read.
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
    """Send a complete response."""
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body, "more_body": False})
