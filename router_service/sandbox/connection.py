"""One request's connection: the ASGI messages of a body, a wait, and an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from starlette.types import Receive, Send

from router_service.sandbox.faults import HEADER

MARK = (HEADER.encode(), b"true")
"""The response header of every answer: no model was asked."""

JSON_TYPE = b"application/json"

RawHeaders = Sequence[tuple[bytes, bytes]]


class ClientLeftError(Exception):
    """The client closed its connection before its answer was complete."""


class Connection:
    """One request's connection to its client."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send

    async def read_body(self) -> bytes:
        """Return the whole body; raises ClientLeftError."""
        parts: list[bytes] = []
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientLeftError
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        return b"".join(parts)

    async def wait(self, delay_s: float | None) -> None:
        """Wait, without an end for None; raises ClientLeftError as soon as the client is gone."""
        if delay_s == 0:
            return
        try:
            async with asyncio.timeout(delay_s):
                while (await self._receive())["type"] != "http.disconnect":
                    pass
        except TimeoutError:
            return
        raise ClientLeftError

    async def start(self, status: int, content_type: bytes, further: RawHeaders = ()) -> None:
        """Send the status and the headers; a body without a length goes out in chunks."""
        headers = [(b"content-type", content_type), MARK, *further]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def send(self, part: bytes, *, more: bool) -> None:
        """Send a part of the body."""
        await self._send({"type": "http.response.body", "body": part, "more_body": more})

    async def send_whole(self, status: int, body: bytes, further: RawHeaders = ()) -> None:
        """Send an answer of JSON at once."""
        length = (b"content-length", b"%d" % len(body))
        await self.start(status, JSON_TYPE, [length, *further])
        await self.send(body, more=False)

    async def send_events(self, events: Iterable[bytes], delay_s: float) -> None:
        """Send events one by one, with a delay between two of them."""
        for index, event in enumerate(events):
            if index:
                await self.wait(delay_s)
            await self.send(event, more=True)
