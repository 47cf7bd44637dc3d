"""Reads what an upstream answers: passes its bytes on, and notes what it used."""

from __future__ import annotations

from collections.abc import AsyncIterator

import orjson

from router_service.core.errors import UpstreamError
from router_service.core.usage import Usage, usage_of
from router_service.upstream.client import Answer

MAX_HELD_BYTES = 1024 * 1024
"""An event longer than this is passed on before it is complete."""

_EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
_DONE = b"[DONE]"


class StreamReader:
    """Reads server-sent events; `usage` is there once an event has told it."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._held = b""
        self._is_done = False
        self.usage: Usage | None = None

    async def events(self) -> AsyncIterator[bytes]:
        """Yield the bytes as they are, cut between events alone.

        So a client never gets half an event before the error that says that the stream broke.
        Raises UpstreamError where it does.
        """
        async for chunk in self._answer.chunks():
            ready = self._take(chunk)
            if ready:
                yield ready
        if self._held:
            self._observe(self._held)
            yield self._held
        if not (self._is_done or self._answer.is_delimited):
            raise UpstreamError(self._answer.model, "broke the connection while it answered")

    def _take(self, chunk: bytes) -> bytes:
        """Return what is complete of what was held and this chunk, and hold the rest."""
        data = self._held + chunk
        end = max(_end_after(data, mark) for mark in _EVENT_ENDS)
        if len(data) - end > MAX_HELD_BYTES:
            end = len(data)
        self._held = data[end:]
        self._observe(data[:end])
        return data[:end]

    def _observe(self, events: bytes) -> None:
        # Most chunks hold neither: they are not even split into lines.
        if b'"usage"' not in events and _DONE not in events:
            return
        for line in events.splitlines():
            data = line.removeprefix(b"data:").strip()
            if data == _DONE:
                self._is_done = True
            elif b'"usage"' in data:
                self.usage = read_usage(data) or self.usage


def read_usage(body: bytes) -> Usage | None:
    """Return what an answer, whole or an event, says that it used; None where it does not."""
    try:
        return usage_of(orjson.loads(body))
    except orjson.JSONDecodeError:
        return None


def is_openai_error(body: bytes) -> bool:
    """Whether a body is an error in OpenAI's form, so that clients can read it as it is."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    return isinstance(value, dict) and isinstance(value.get("error"), dict)


def _end_after(data: bytes, mark: bytes) -> int:
    found = data.rfind(mark)
    return found + len(mark) if found >= 0 else 0
