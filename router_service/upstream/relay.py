"""Reads what an upstream answers: passes its bytes on, and notes what is in them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import orjson

from router_service.core.errors import Failure, UpstreamError
from router_service.core.messages import Json
from router_service.core.said import Listener
from router_service.core.usage import Usage, usage_of
from router_service.upstream.client import Answer

MAX_HELD_BYTES = 1024 * 1024
"""An event longer than this is passed on before it is complete, and not read."""

CHARACTERS_PER_TOKEN = 4
"""OpenAI's rule of thumb for English, for answers whose provider does not count."""

MAX_IDENTITY = 200
"""Longest id or model of an upstream's that is kept, in characters."""

_BLANK_LINE = re.compile(rb"\n\n|\n\r\n|\r\r")
_SEAM_BYTES = 2  # of what is held, a blank line may begin in as many
_DONE = b"[DONE]"
# A tuple, not a set: what an upstream sends as a type may be a list, which no set is asked for.
_LAST_TYPES = ("response.completed", "response.incomplete", "response.failed")
_TEXTS = ("content", "reasoning_content", "reasoning", "refusal")


@dataclass(frozen=True, slots=True)
class Identity:
    """The id and the model that an answer says it is; None where it does not."""

    id: str | None = None
    model: str | None = None


class EventReader:
    """Reads server-sent events; what it has noted of them is in its attributes."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._tail = b""
        self.is_within_event = False
        """Whether the last bytes were of an event that was too long to be held."""
        self._is_done = False
        self._characters = 0
        self.usage: Usage | None = None
        """What the upstream has said that it used."""
        self.has_output = False
        """Whether an event was part of an answer: not a comment, and no error."""
        self.error: UpstreamError | None = None
        """The error that an event told."""
        self.last_number = -1
        """The number of the last event, where events have one (Responses API)."""
        self.response_id: str | None = None
        """Of a response that the upstream may keep (Responses API)."""
        self.identity = Identity()
        """What the answer says of itself."""
        self.listener = Listener()
        """What the answer has said so far."""
        self.events = self._events()
        """The bytes as they are, cut between events alone; to be read once.

        So a client never gets half an event before the error that says that the stream broke.
        Raises UpstreamError where it does, or where an event cannot be read.
        """
        self._unreadable: UpstreamError | None = None

    @property
    def written_tokens(self) -> int:
        """About how many tokens the events had so far."""
        return -(-self._characters // CHARACTERS_PER_TOKEN)

    async def _events(self) -> AsyncIterator[bytes]:
        async for chunk in self._answer.chunks():
            ready = self._take(chunk)
            if ready:
                yield ready
            if self._unreadable:
                raise self._unreadable
        if rest := b"".join(self._held):
            self._observe(rest)
            yield rest
        if not (self._is_done or self.error or self._answer.is_delimited):
            problem = "broke the connection while it answered"
            raise UpstreamError(self._answer.model, problem, Failure.BROKEN)

    def _take(self, chunk: bytes) -> bytes:
        """Return what is complete of what was held and this chunk, and hold the rest.

        No byte is searched twice: an event of 1 MB in chunks of 1 KB would take seconds.
        """
        seam = self._tail + chunk
        ends = [found.end() - len(seam) for found in _BLANK_LINE.finditer(seam)]
        self._hold(chunk)
        self._tail = seam[-_SEAM_BYTES:]
        return self._complete(ends) if ends else self._overlong()

    def _complete(self, ends: Sequence[int]) -> bytes:
        """Return the events that end there, counted from the end of what is held."""
        data, start = b"".join(self._held), 0
        for end in ends:
            try:
                self._observe(data[start : len(data) + end])
            except UpstreamError as exc:
                self._unreadable = exc
                return data[:start]
            start = len(data) + end
        self._let_go()
        self._hold(data[start:])
        self._tail = data[start:][-_SEAM_BYTES:]
        return data[:start]

    def _overlong(self) -> bytes:
        """Return the start of an event that is too long to be held; comments are never so long."""
        if self._held_bytes <= MAX_HELD_BYTES:
            return b""
        data = b"".join(self._held)
        self._let_go()
        self.is_within_event = self.has_output = True
        self.listener.has_missed = True
        return data

    def _hold(self, part: bytes) -> None:
        self._held.append(part)
        self._held_bytes += len(part)

    def _let_go(self) -> None:
        self._held.clear()
        self._held_bytes = 0

    def _observe(self, event: bytes) -> None:
        """Read one event (WHATWG HTML, "Interpreting an event stream")."""
        if self.is_within_event:
            self.is_within_event = False
            return
        fields = [line[5:] for line in event.splitlines() if line.startswith(b"data:")]
        data = b"\n".join(fields).strip()
        if data == _DONE:
            self._is_done = True
        elif data:
            self._read(data)

    def _read(self, data: bytes) -> None:
        try:
            event = orjson.loads(data)
        except orjson.JSONDecodeError as exc:
            problem = "sent an event that cannot be read"
            raise UpstreamError(self._answer.model, problem, Failure.MALFORMED) from exc
        if is_error(event):
            problem = "sent an error within its answer"
            self.error = UpstreamError(self._answer.model, problem, Failure.ERROR_BODY)
            return
        self.has_output = True
        self._is_done = self._is_done or event.get("type") in _LAST_TYPES
        self.usage = usage_of(event) or self.usage
        self.response_id = self.response_id or _response_id(event)
        if self.identity.id is None:
            self.identity = identity_of(event)
        number = event.get("sequence_number")
        self.last_number = number if isinstance(number, int) else self.last_number
        self._characters += _written_characters(event)
        self.listener.hear(event)


def is_error(value: Json) -> bool:
    """Whether a decoded body or event tells an error, whatever its status was.

    Chat Completions have an `error` at the top, Responses an event of that type or a response that
    failed. What is no object is none of these APIs' answers.
    """
    if not isinstance(value, dict):
        return True
    is_failed = value.get("status") == "failed" or value.get("type") == "response.failed"
    return bool(value.get("error")) or value.get("type") == "error" or is_failed


def is_openai_error(body: bytes) -> bool:
    """Whether a body is an error in OpenAI's form, so that clients can read it as it is."""
    value = decoded(body)
    return isinstance(value, dict) and isinstance(value.get("error"), dict)


def decoded(body: bytes) -> Json:
    """Return a body as JSON, or None where it is none."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None


def identity_of(value: Json) -> Identity:
    """Return what an answer, or an event of it, says of itself."""
    response = value.get("response") if isinstance(value, dict) else None
    told = response if isinstance(response, dict) else value
    if not isinstance(told, dict):
        return Identity()
    return Identity(*(_short(told.get(name)) for name in ("id", "model")))


def _short(value: Json) -> str | None:
    return value[:MAX_IDENTITY] if isinstance(value, str) else None


def _response_id(event: Json) -> str | None:
    response = event.get("response")
    found = response.get("id") if isinstance(response, dict) else None
    return found if isinstance(found, str) else None


def _written_characters(event: Json) -> int:
    """Count what an event adds to an answer: text, reasoning, a refusal, or a call's arguments."""
    if isinstance(delta := event.get("delta"), str):  # the Responses API
        return len(delta)
    return sum([_choice_characters(choice) for choice in _objects(event.get("choices"))])


def _choice_characters(choice: Json) -> int:
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return _length(choice.get("text"))
    count = sum([_length(text) for name, text in delta.items() if name in _TEXTS])
    for call in _objects(delta.get("tool_calls")):
        function = call.get("function")
        if isinstance(function, dict):
            count += _length(function.get("name")) + _length(function.get("arguments"))
    return count


def _objects(value: Json) -> Sequence[Json]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else ()


def _length(value: Json) -> int:
    return len(value) if isinstance(value, str) else 0
