"""Reads what an upstream answers: passes its bytes on, and notes what is in them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import orjson

from router_service.core.answers import AnswerAccumulator, Usage, fix_surrogates, read_usage
from router_service.core.errors import Failure, UpstreamError
from router_service.core.messages import Json
from router_service.upstream.client import UpstreamAnswer

MAX_HELD_BYTES = 1024 * 1024
"""An event longer than this is passed on before it is complete, and not read."""

MAX_READ_BYTES = 8 * 1024
"""Bytes of a stream that are read before other requests have their turn. If 60 upstreams send small
events as fast as they can, this stalls the event loop for 0.04 s, and 64 KB for 0.1 to 0.24 s."""

CHARACTERS_PER_TOKEN = 4
"""OpenAI's rule of thumb for English, for answers whose provider does not count."""

MAX_SEQUENCE_NUMBER = 2**53
"""Numbers from here on are ignored: JavaScript clients could not add one to them (RFC 8259,
section 6), and from 2**64 on we could not write them."""

MAX_IDENTITY = 200
"""Longest id or model of an upstream's that is kept, in characters."""

MAX_VALUES = 25_000
"""Most values of a JSON text that are read, roughly: its commas and opening brackets are counted.
Reading and looking at them takes up to 25 ms of the event loop; 60 MB of `{}` would take
seconds and 2 GB."""

UNCOUNTED_BYTES = 32 * 1024
"""A text of this length cannot have many more values than `MAX_VALUES`, and takes little memory."""

SKIM_BYTES = 16 * 1024
"""How much of the end of an unread answer is searched for its usage."""

# With all blank lines that follow: each as an event of its own, 64 KB would take 0.1 s.
_BLANK_LINE = re.compile(rb"(?:\n\n|\n\r\n|\r\r)[\r\n]*")
_SEAM_BYTES = 2  # of what is held, a blank line may begin in as many
_DONE = b"[DONE]"
# A tuple, not a set: what an upstream sends as a type may be a list, which no set is asked for.
_LAST_TYPES = ("response.completed", "response.incomplete", "response.failed")
_TEXTS = ("content", "reasoning_content", "reasoning", "refusal")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class AnswerIdentity:
    """The id and the model that an answer says it is; None where it does not."""

    id: str | None = None
    model: str | None = None


class EventReader:
    """Reads server-sent events; what it has noted of them is in its attributes."""

    def __init__(self, answer: UpstreamAnswer, *, expects_json: bool = True) -> None:
        """Read an answer; without `expects_json` its events may be anything."""
        self._answer = answer
        self._expects_json = expects_json
        self._has_begun = False
        self._held = bytearray()
        self._tail = b""
        self.is_within_event = False
        """Whether the last bytes passed on were not the end of an event."""
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
        self.identity = AnswerIdentity()
        """What the answer says of itself."""
        self.accumulator = AnswerAccumulator()
        """What the answer has said so far."""
        self.events = self._events()
        """The bytes as they are, cut between events alone; to be read once.

        So a client never gets half an event before the error that says that the stream broke.
        Raises UpstreamError if it does, if an event before the first output cannot be read, or if
        a later one is cut off.
        """
        self._unreadable: UpstreamError | None = None

    @property
    def written_tokens(self) -> int:
        """About how many tokens the events had so far."""
        return -(-self._characters // CHARACTERS_PER_TOKEN)

    async def _events(self) -> AsyncIterator[bytes]:
        async for chunk in self._answer.chunks():
            for start in range(0, len(chunk), MAX_READ_BYTES):
                if start:
                    await asyncio.sleep(0)
                ready = self._take(chunk[start : start + MAX_READ_BYTES])
                if ready:
                    yield ready
                if self._unreadable:
                    raise self._unreadable
        if rest := bytes(self._held):
            self._observe(rest)
            if self._unreadable:
                raise self._unreadable
            yield rest
            self.is_within_event = True  # no blank line ended it
        is_complete = self._is_done or self.error or self._answer.is_delimited
        if self._expects_json and not is_complete:
            problem = "broke the connection while it answered"
            raise UpstreamError(self._answer.model, problem, Failure.BROKEN)

    def _take(self, chunk: bytes) -> bytes:
        """Return what is complete of what was held and this chunk, and hold the rest.

        No byte is searched twice: an event of 1 MB in chunks of 1 KB would take seconds.
        """
        seam = self._tail + chunk
        ends = [found.end() - len(seam) for found in _BLANK_LINE.finditer(seam)]
        self._held += chunk
        self._tail = seam[-_SEAM_BYTES:]
        return self._complete(ends) if ends else self._overlong()

    def _complete(self, ends: Sequence[int]) -> bytes:
        """Return the events that end there, counted from the end of what is held."""
        data, start = bytes(self._held), 0
        self._let_go()
        for end in ends:
            self._observe(data[start : len(data) + end])
            if self._unreadable:
                return data[:start]
            start = len(data) + end
        self._held += data[start:]
        self._tail = data[start:][-_SEAM_BYTES:]
        return data[:start]

    def _overlong(self) -> bytes:
        """Return the start of an event that is too long to be held; comments are never so long."""
        if self._may_be_held():
            return b""
        data = bytes(self._held)
        self._let_go()
        self.is_within_event = self.has_output = True
        self.accumulator.is_incomplete = True
        return data

    def _may_be_held(self) -> bool:
        """Return whether the held bytes are few, or fit into the memory of all requests."""
        uncounted_bytes = len(self._held) - self._answer.held_bytes
        if uncounted_bytes <= UNCOUNTED_BYTES:
            return True
        return len(self._held) <= MAX_HELD_BYTES and self._answer.try_hold(uncounted_bytes)

    def _let_go(self) -> None:
        self._held.clear()
        if self._answer.held_bytes:
            self._answer.let_go()

    def _observe(self, event: bytes) -> None:
        """Read one event (WHATWG HTML, "Interpreting an event stream")."""
        if not self._has_begun:
            self._has_begun = True
            event = event.removeprefix(_BYTE_ORDER_MARK)
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
            event = read_json(data)
        except UnreadableError as exc:
            self._leave_unread(data, exc)
            return
        if not (self._expects_json or isinstance(event, dict)):
            self._note_unread()
            return
        if is_error(event):
            problem = "sent an error within its answer"
            self.error = UpstreamError(self._answer.model, problem, failure_told(event))
            return
        self.has_output = True
        self._is_done = self._is_done or event.get("type") in _LAST_TYPES
        self.usage = read_usage(event) or self.usage
        self.response_id = self.response_id or _response_id(event)
        if self.identity.id is None:
            self.identity = identity_of(event)
        number = event.get("sequence_number")
        if type(number) is int and 0 <= number < MAX_SEQUENCE_NUMBER:
            self.last_number = number
        self._characters += _written_characters(event)
        self.accumulator.feed(event)

    def _leave_unread(self, data: bytes, exc: UnreadableError) -> None:
        """Let an event pass that cannot be read, or note it as a failure.

        Before the first output it is one, because another deployment may do better. After that the
        client gets all there is, and may be able to read more than we do. An event that is cut off
        is an exception: a part of the answer is lost, and the client is told so.
        """
        is_failure = exc.is_cut_off or not (self.has_output or exc.is_too_much)
        if self._expects_json and is_failure:
            problem = "sent an event that cannot be read"
            # Raised where the event is not in reach: a traceback would keep it for as long.
            self._unreadable = UpstreamError(self._answer.model, problem, Failure.MALFORMED)
            return
        self._note_unread()
        if exc.is_too_much:
            found = skim(data)
            self.usage = read_usage(found) or self.usage
            self._is_done = self._is_done or found.get("type") in _LAST_TYPES

    def _note_unread(self) -> None:
        self.has_output = self.accumulator.is_incomplete = True


def is_error(value: Json) -> bool:
    """Whether a decoded body or event tells an error, whatever its status was.

    Chat Completions have an `error` at the top, Responses an event of that type or a response that
    failed. What is no object is none of these APIs' answers.
    """
    if not isinstance(value, dict):
        return True
    is_failed = value.get("status") == "failed" or value.get("type") == "response.failed"
    return bool(value.get("error")) or value.get("type") == "error" or is_failed


_CLIENTS_CODES = frozenset(
    (
        "content_filter",
        "content_policy_violation",
        "context_length_exceeded",
        "empty_image_file",
        "failed_to_download_image",
        "unsupported_image_media_type",
    )
)
_CLIENTS_CODE_PREFIXES = ("invalid_image", "invalid_base64", "invalid_prompt", "image_")
"""What is wrong with a request (API reference: "The response object", error)."""

_NOT_CLIENTS_STATUSES = frozenset({401, 408, 429})


def failure_told(value: Json) -> Failure:
    """Return how an upstream failed that tells an error in a good answer, by the error's code.

    OpenAI's codes are words, OpenRouter's are statuses of HTTP.
    """
    told = value.get("response", value) if isinstance(value, dict) else None
    error = told.get("error", told) if isinstance(told, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    if isinstance(code, int):
        is_clients = 400 <= code < 500 and code not in _NOT_CLIENTS_STATUSES
    else:
        code = code if isinstance(code, str) else ""
        is_clients = code in _CLIENTS_CODES or code.startswith(_CLIENTS_CODE_PREFIXES)
    return Failure.REFUSED if is_clients else Failure.ERROR_BODY


def is_openai_error(body: bytes) -> bool:
    """Whether a body is an error in OpenAI's form, so that clients can read it as it is."""
    value = decoded(body)
    return isinstance(value, dict) and isinstance(value.get("error"), dict)


class UnreadableError(ValueError):
    """Bytes that cannot be read as JSON."""

    def __init__(self, *, is_cut_off: bool = False, is_too_much: bool = False) -> None:
        super().__init__("cut off" if is_cut_off else "too much" if is_too_much else "not JSON")
        self.is_cut_off = is_cut_off
        """Whether it begins as an object or an array and does not end as one."""
        self.is_too_much = is_too_much
        """Whether it is valid JSON with more values or levels than this gateway reads."""


def read_json(data: bytes) -> Json:
    """Return the value of a JSON text as lenient clients read it; raises UnreadableError.

    Beyond JSON (RFC 8259), providers send halves of surrogate pairs, NaN and infinities, numbers
    of any length, control characters in strings, broken UTF-8 and a byte order mark. Clients that
    read those get the bytes as they are, so that reading them here must not fail either. Strings
    may have lone surrogates: see `fix_surrogates`.
    """
    is_too_much = len(data) > UNCOUNTED_BYTES and sum(map(data.count, _VALUE_STARTS)) > MAX_VALUES
    if not is_too_much:
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError:
            pass
    text = data.removeprefix(_BYTE_ORDER_MARK).strip()
    if text[:1] + text[-1:] not in (b"{}", b"[]"):
        raise UnreadableError(is_cut_off=text.startswith((b"{", b"[")))
    if is_too_much:
        raise UnreadableError(is_too_much=True)
    # As fast as orjson for many small values; long strings take twice as long.
    try:
        return _LENIENT.decode(text.decode(errors="replace"))
    except RecursionError:
        is_too_much = True
    except ValueError:
        pass
    # Not raised from the other errors, which hold the text.
    raise UnreadableError(is_too_much=is_too_much)


def _integer(digits: str) -> int | float:
    """Return an integer of 64 bits, or a float: a million digits would take quadratic time."""
    return int(digits) if len(digits) <= _MAX_DIGITS else float(digits)


_MAX_DIGITS = 20
_LENIENT = json.JSONDecoder(strict=False, parse_int=_integer)
_VALUE_STARTS = (b",", b"{", b"[")


def skim(start: bytes, end: bytes = b"") -> dict[str, Json]:
    """Return what can be found of an answer or event that is not read: texts by name, and usage.

    `start` is how it begins, and all of it if there is no `end`. The texts are the first of their
    names, and the usage is the last one.
    """
    found: dict[str, Json] = {}
    for name, value in _NAMED_TEXT.findall(start[:SKIM_BYTES]):
        found.setdefault(name.decode(), value.decode(errors="replace"))
    tail = (start[-SKIM_BYTES:] + end)[-SKIM_BYTES:]
    for match in list(_USAGE.finditer(tail))[: -MAX_USAGES - 1 : -1]:
        try:
            usage, _ = _LENIENT.raw_decode(tail[match.end() :].decode(errors="replace"))
        except (ValueError, RecursionError):
            continue
        if read_usage({"usage": usage}) is not None:
            return found | {"usage": usage}
    return found


MAX_USAGES = 4
_NAMED_TEXT = re.compile(rb'"(id|model|object|type)"\s*:\s*"([^"\\]{1,%d})"' % MAX_IDENTITY)
_USAGE = re.compile(rb'"usage"\s*:\s*(?=\{)')


def decoded(body: bytes) -> Json:
    """Return a body as JSON, or None if it cannot be read."""
    try:
        return read_json(body)
    except UnreadableError:
        return None


def identity_of(value: Json) -> AnswerIdentity:
    """Return what an answer, or an event of it, says of itself."""
    response = value.get("response") if isinstance(value, dict) else None
    told = response if isinstance(response, dict) else value
    if not isinstance(told, dict):
        return AnswerIdentity()
    return AnswerIdentity(*(_short(told.get(name)) for name in ("id", "model")))


def _short(value: Json) -> str | None:
    return fix_surrogates(value[:MAX_IDENTITY]) if isinstance(value, str) else None


def _response_id(event: Json) -> str | None:
    response = event.get("response")
    found = response.get("id") if isinstance(response, dict) else None
    return fix_surrogates(found) if isinstance(found, str) else None


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
