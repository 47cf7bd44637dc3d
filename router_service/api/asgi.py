"""Sends parts of an answer, and notices that the client left."""

from __future__ import annotations

import anyio
from starlette.types import Receive, Send

RawHeaders = list[tuple[bytes, bytes]]


async def cancel_when_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    """Cancel a scope as soon as the client has closed its connection; the body must be read."""
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


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
