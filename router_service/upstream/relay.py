"""Event streams of upstreams: bytes are forwarded unchanged, and their content is recorded."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence

from router_service.core.answers import AnswerAccumulator, Usage, fix_surrogates, read_usage
from router_service.core.errors import Failure, UpstreamError
from router_service.core.messages import Json
from router_service.upstream.answers import (
    BYTE_ORDER_MARK,
    UNCOUNTED_BYTES,
    AnswerIdentity,
    StartedAnswer,
    UnreadableError,
    failure_of_error,
    identity_of,
    is_error,
    read_json,
    skim,
)
from router_service.upstream.client import UpstreamAnswer

MAX_HELD_BYTES = 1024 * 1024
"""An event longer than this is forwarded before it is complete, and is not read."""

MAX_READ_BYTES = 8 * 1024
"""Bytes of a stream that are read before other requests have their turn. If 60 upstreams send small
events as fast as they can, this stalls the event loop for 0.04 s, and 64 KB for 0.1 to 0.24 s."""

KEEP_ALIVE_HOLD_S = 5.0
"""How long comments before an answer's first event are held back, so that another deployment may
still answer. Clients wait longer than that for a sign of life."""

KEEP_ALIVE_HOLD_BYTES = 64 * 1024
"""Most bytes of such comments that are held back."""

CHARACTERS_PER_TOKEN = 4
"""OpenAI's rule of thumb for English, for answers whose provider does not count tokens."""

MAX_SEQUENCE_NUMBER = 2**53
"""Numbers from here on are ignored. JavaScript clients could not add one to them (RFC 8259, section
6), and from 2**64 on they could not be written here."""

# With all blank lines that follow: as events of their own, 64 KB of them would take 0.1 s.
_BLANK_LINE = re.compile(rb"(?:\n\n|\n\r\n|\r\r)[\r\n]*")
_SEAM_BYTES = 2  # a blank line may begin in the last two of the buffered bytes
_DONE = b"[DONE]"
# A tuple instead of a set, because an upstream may send a type that cannot be hashed, as a list.
_LAST_TYPES = ("response.completed", "response.incomplete", "response.failed")
_TEXTS = ("content", "reasoning_content", "reasoning", "refusal")


async def start_stream(
    answer: UpstreamAnswer, started: StartedAnswer, *, expects_json: bool = True
) -> None:
    """Read events until the first that is output, or raise UpstreamError if there is no output."""
    reader = started.reader = EventReader(answer, expects_json=expects_json)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    async for part in reader.events:
        started.body += part
        is_long = len(started.body) > KEEP_ALIVE_HOLD_BYTES
        if reader.has_output or is_long or loop.time() > began_s + KEEP_ALIVE_HOLD_S:
            return
        if reader.error:
            raise reader.error
    raise UpstreamError(answer.model, "ended its answer without any output", Failure.BROKEN)


class EventReader:
    """Reader of server-sent events, which records their content in its attributes."""

    def __init__(self, answer: UpstreamAnswer, *, expects_json: bool = True) -> None:
        """Read an answer. Without `expects_json`, its events may be of any kind."""
        self._answer = answer
        self._expects_json = expects_json
        self._has_begun = False
        self._held = bytearray()
        self._tail = b""
        self.is_within_event = False
        """Whether the last forwarded bytes were not the end of an event."""
        self._is_done = False
        self._characters = 0
        self.usage: Usage | None = None
        """The usage that the upstream has reported."""
        self.has_output = False
        """Whether an event was part of an answer: neither a comment nor an error."""
        self.error: UpstreamError | None = None
        """The error that an event reported."""
        self.last_number = -1
        """The number of the last event, if events have one (Responses API)."""
        self.response_id: str | None = None
        """The id of a response that the upstream may store (Responses API)."""
        self.identity = AnswerIdentity()
        self.accumulator = AnswerAccumulator()
        self.events = self._read_events()
        """The stream's bytes, unchanged and cut only between events. Iterate over it once.

        So a client never gets half an event before the error that reports a broken stream. It
        raises UpstreamError if the stream breaks, if an event before the first output cannot be
        read, or if a later event is cut off.
        """
        self._unreadable: UpstreamError | None = None

    @property
    def written_tokens(self) -> int:
        """Return roughly how many tokens the events had so far."""
        return -(-self._characters // CHARACTERS_PER_TOKEN)

    async def _read_events(self) -> AsyncIterator[bytes]:
        async for chunk in self._answer.chunks():
            for start in range(0, len(chunk), MAX_READ_BYTES):
                if start:
                    await asyncio.sleep(0)
                ready = self._feed(chunk[start : start + MAX_READ_BYTES])
                if ready:
                    yield ready
                if self._unreadable:
                    raise self._unreadable
        if rest := bytes(self._held):
            self._read_event(rest)
            if self._unreadable:
                raise self._unreadable
            yield rest
            self.is_within_event = True  # no blank line ended it
        is_complete = self._is_done or self.error or self._answer.is_delimited
        if self._expects_json and not is_complete:
            problem = "broke the connection while it answered"
            raise UpstreamError(self._answer.model, problem, Failure.BROKEN)

    def _feed(self, chunk: bytes) -> bytes:
        """Add a chunk to the buffer and return the bytes that can be forwarded.

        No byte is searched twice: an event of 1 MB in chunks of 1 KB would take seconds.
        """
        seam = self._tail + chunk
        ends = [found.end() - len(seam) for found in _BLANK_LINE.finditer(seam)]
        self._held += chunk
        self._tail = seam[-_SEAM_BYTES:]
        if not ends:
            # Hold the start of an event, if it is short or there is memory for it.
            unreserved_bytes = len(self._held) - self._answer.reserved_bytes
            if unreserved_bytes <= UNCOUNTED_BYTES or (
                len(self._held) <= MAX_HELD_BYTES and self._answer.try_reserve(unreserved_bytes)
            ):
                return b""
            data = self._empty_buffer()
            self.is_within_event = self.has_output = True  # comments are never so long
            self.accumulator.is_incomplete = True
            return data
        data, start = self._empty_buffer(), 0
        for end in ends:  # counted from the end of the data
            self._read_event(data[start : len(data) + end])
            if self._unreadable:
                return data[:start]
            start = len(data) + end
        self._held += data[start:]
        self._tail = data[start:][-_SEAM_BYTES:]
        return data[:start]

    def _empty_buffer(self) -> bytes:
        data = bytes(self._held)
        self._held.clear()
        if self._answer.reserved_bytes:
            self._answer.release_memory()
        return data

    def _read_event(self, event: bytes) -> None:
        """Record one event (WHATWG HTML, "Interpreting an event stream")."""
        if not self._has_begun:
            self._has_begun = True
            event = event.removeprefix(BYTE_ORDER_MARK)
        if self.is_within_event:
            self.is_within_event = False
            return
        fields = [line[5:] for line in event.splitlines() if line.startswith(b"data:")]
        data = b"\n".join(fields).strip()
        if not data or data == _DONE:
            self._is_done = self._is_done or data == _DONE
            return
        try:
            content = read_json(data)
        except UnreadableError as exc:
            self._skip_unreadable(data, exc)
            return
        if not (self._expects_json or isinstance(content, dict)):
            self.has_output = self.accumulator.is_incomplete = True
            return
        if is_error(content):
            problem = "sent an error within its answer"
            self.error = UpstreamError(self._answer.model, problem, failure_of_error(content))
            return
        self.has_output = True
        self._is_done = self._is_done or content.get("type") in _LAST_TYPES
        self.usage = read_usage(content) or self.usage
        response = content.get("response")
        response_id = response.get("id") if isinstance(response, dict) else None
        if isinstance(response_id, str) and not self.response_id:
            self.response_id = fix_surrogates(response_id)
        if self.identity.id is None:
            self.identity = identity_of(content)
        number = content.get("sequence_number")
        if type(number) is int and 0 <= number < MAX_SEQUENCE_NUMBER:
            self.last_number = number
        self._characters += _written_characters(content)
        self.accumulator.feed(content)

    def _skip_unreadable(self, data: bytes, exc: UnreadableError) -> None:
        """Forward an event that cannot be read, or record it as a failure.

        Before the first output it is a failure, because another deployment may do better. After
        that the client gets all events, and may be able to read more than the gateway. But if an
        event is cut off, a part of the answer is lost, and the client gets an error.
        """
        is_failure = exc.is_cut_off or not (self.has_output or exc.is_too_much)
        if self._expects_json and is_failure:
            problem = "sent an event that cannot be read"
            # Raised where the event is out of scope, because a traceback would keep it in memory.
            self._unreadable = UpstreamError(self._answer.model, problem, Failure.MALFORMED)
            return
        self.has_output = self.accumulator.is_incomplete = True
        if exc.is_too_much:
            found = skim(data)
            self.usage = read_usage(found) or self.usage
            self._is_done = self._is_done or found.get("type") in _LAST_TYPES


def _written_characters(event: Json) -> int:
    """Count the characters that an event adds to an answer.

    Text, reasoning, refusals and the names and arguments of calls count.
    """
    if isinstance(delta := event.get("delta"), str):  # the Responses API
        return len(delta)
    count = 0
    for choice in _objects(event.get("choices")):
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            count += _length(choice.get("text"))
            continue
        count += sum([_length(text) for name, text in delta.items() if name in _TEXTS])
        for call in _objects(delta.get("tool_calls")):
            function = call.get("function")
            if isinstance(function, dict):
                count += _length(function.get("name")) + _length(function.get("arguments"))
    return count


def _objects(value: Json) -> Sequence[Json]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else ()


def _length(value: Json) -> int:
    return len(value) if isinstance(value, str) else 0
