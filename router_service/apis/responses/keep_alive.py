"""Beginning of a response before its answer is known."""

from __future__ import annotations

import time
from uuid import uuid4

from router_service.apis.api import KeepAlive
from router_service.apis.conversation import Json
from router_service.apis.encoding import UnwritableError, encode
from router_service.apis.frames import BLANK_LINE, data_of, with_data
from router_service.core.strict_json import loads_exactly

_CREATED = "response.created"


class ResponsesKeepAlive(KeepAlive):
    """Events that create a response, and then say that it is in progress.

    Clients do not see comments. The answer's events get the id of this response and the next
    numbers, and its own `response.created` is left out.
    """

    def __init__(self, model: str) -> None:
        """Name the model that the client asked for; the last event names the one that answered."""
        self._response: dict[str, Json] = {
            "id": f"resp_{uuid4().hex}",
            "object": "response",
            "created_at": int(time.time()),
            "model": model,
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "output": [],
            "parallel_tool_calls": True,
            "store": False,
            "tool_choice": "auto",
            "tools": [],
            "usage": None,
        }
        self._number = 0
        """The sequence number of the next event."""
        self._rest = b""
        """The beginning of an event of the answer that is not complete."""

    def ping(self) -> bytes:
        """Return `response.created`, and later `response.in_progress`."""
        kind = "response.in_progress" if self._number else _CREATED
        data = {"type": kind, "sequence_number": self._number, "response": self._response}
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), encode(data))

    def join(self, events: bytes, *, is_last: bool) -> bytes:
        """Return the next events of the answer, with this response's id and their numbers."""
        events, end = self._rest + events, 0
        joined = []
        for blank in BLANK_LINE.finditer(events):
            joined.append(self._continue(events[end : blank.end()]))
            end = blank.end()
        self._rest = b"" if is_last else events[end:]
        if is_last and end < len(events):
            joined.append(self._continue(events[end:]))
        return b"".join(joined)

    def _continue(self, event: bytes) -> bytes:
        try:
            value = loads_exactly(data_of(event))
        except ValueError:
            return event  # a comment, or what clients must be able to read without the gateway
        if not isinstance(value, dict):
            return event
        if value.get("type") == _CREATED:
            return b""
        response = value.get("response")
        if isinstance(response, dict):
            value["response"] = {**response, "id": self._response["id"]}
        if "sequence_number" in value:
            value["sequence_number"] = self._number
            self._number += 1
        try:
            return with_data(event, encode(value))
        except UnwritableError:
            return event
