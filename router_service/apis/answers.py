"""What the gateway keeps of an answer: its calls, its text, its usage, and how far it has arrived.

Each API has a record that reads its answers and events while they pass through unchanged. An answer
that is translated is recorded from the events that its reader returns, so that nothing is read
twice.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from typing import ClassVar

import orjson

from router_service.apis.conversation import Json
from router_service.apis.encoding import fix_surrogates
from router_service.apis.parts import (
    AnswerPart,
    Event,
    Finished,
    PartEnded,
    PartGrew,
    PartProved,
    PartStarted,
    Started,
    Stop,
    Text,
    Thinking,
    ToolUse,
)
from router_service.apis.usage import Usage, read_counts
from router_service.core import strict_json
from router_service.core.values import request_value

MAX_ANSWER_CHARACTERS = 1024 * 1024
"""Longest answer that is kept, in characters of its text and calls."""

CALL_CHARACTERS = 300
"""Characters that each call adds to an answer's length, in addition to its arguments: the bytes of
memory that a call takes."""

MAX_PARTS = 5_000
"""Limit on the choices, calls and items that are read of a whole answer or of one event. Reading
this many takes 5 ms. An answer with more of them is not kept."""

MAX_INTEGER_DIGITS = 300
"""Digits of an integer that calls are compared by; a longer one is compared as a text. A float can
hold as many, even a thousand times as large."""

MAX_READ_DIGITS = 1_000
"""Digits of an integer up to which the arguments of a call are read exactly."""

MAX_IDENTITY = 200
"""Longest id or model of an answer that is kept, in characters."""


_JSON = json.JSONDecoder(parse_int=float, parse_constant=int)
"""Reads lone surrogates and `1e400`, which orjson refuses. `NaN` is no JSON, and raises
ValueError."""
_REFUSALS = ("surrogate", "infinity")
"""Words of orjson's errors for what other parsers read."""
_TOO_DEEP = "depth limit"
"""Beginning of orjson's error for more than 1,024 levels."""


@request_value(frozen=True, slots=True)
class AnswerIdentity:
    """The id and the model that an answer names, if any; they may have lone surrogates."""

    id: str | None = None
    model: str | None = None

    @classmethod
    def of(cls, value: Json) -> AnswerIdentity:
        """Return the identity in an object's `id` and `model`."""
        if not isinstance(value, dict):
            return NO_IDENTITY
        answer_id, model = value.get("id"), value.get("model")
        return cls(
            answer_id[:MAX_IDENTITY] if isinstance(answer_id, str) else None,
            model[:MAX_IDENTITY] if isinstance(model, str) else None,
        )


NO_IDENTITY = AnswerIdentity()


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A tool call as a model wrote it. Its arguments are text, which is JSON for functions."""

    id: str
    """Empty if the call has none."""
    name: str
    arguments: str
    is_custom: bool = False
    """Whether the arguments are free text (a custom tool)."""

    def decoded(self) -> dict[str, Json] | None:
        """Return the arguments, or None if they are not a JSON object.

        Some models write nothing for a call without arguments.
        """
        if not self.arguments.strip():
            return {}
        try:
            value = orjson.loads(self.arguments)
        except orjson.JSONDecodeError:
            return None
        return value if isinstance(value, dict) else None

    @property
    def has_object(self) -> bool:
        """Whether the arguments are one JSON object, also one that only other parsers read.

        Arguments that are too deep are not judged.
        """
        text = self.arguments.strip()
        if not text.startswith("{"):
            return not text
        try:
            orjson.loads(text)
        except orjson.JSONDecodeError as exc:
            if exc.msg.startswith(_TOO_DEEP):
                return True
            if not any(word in exc.msg for word in _REFUSALS):
                return False
            try:
                _JSON.decode(text)
            except RecursionError:
                return True
            except ValueError:
                return False
        return True

    def decoded_exactly(self) -> dict[str, Json] | None:
        """Return the arguments as `decoded` does, but with integers beyond 64 bits as they are.

        One of more than `MAX_INTEGER_DIGITS` becomes a text, and one of more than `MAX_READ_DIGITS`
        cannot be read. orjson cannot write what this returns.
        """
        text = self.arguments.encode(errors="surrogatepass")
        if not strict_json.has_long_integers(text):
            return self.decoded()
        try:
            strict_json.loads(text)
            value = _EXACT.decode(self.arguments)
        except (ValueError, RecursionError):  # that of JSON is a ValueError
            return None
        return value if isinstance(value, dict) else None


def _integer(digits: str) -> int | str:
    if len(digits) > MAX_READ_DIGITS:
        raise ValueError(f"an integer has {len(digits)} digits")
    return int(digits) if len(digits) <= MAX_INTEGER_DIGITS else digits


_EXACT = json.JSONDecoder(parse_int=_integer)


@request_value(frozen=True, slots=True)
class ParsedAnswer:
    """The tool calls and the text of an answer, or of its first choice if there are several."""

    calls: tuple[WrittenCall, ...] = ()
    text: str = ""
    usage: Usage | None = field(default=None, compare=False)
    """The tokens that the answer reports, if they were read with it."""
    stop: Stop | None = field(default=None, compare=False)
    """Why the answer ended; None if it ended by itself, or did not say."""
    has_other_output: bool = field(default=False, compare=False)
    """Whether it contains output other than text, calls and reasoning, such as a refusal, an image
    or the result of a tool that the provider runs."""

    @property
    def is_text(self) -> bool:
        """Whether the answer is text without tool calls; neither is no text."""
        return not self.calls and bool(self.text.strip())

    @property
    def is_refusal(self) -> bool:
        """Whether the model refused to answer, or its provider's filter withheld the answer."""
        return self.stop in {Stop.REFUSAL, Stop.FILTER} and not self.calls

    @property
    def characters(self) -> int:
        """Return the length of the text and of the calls' arguments."""
        return len(self.text) + sum(len(call.arguments) for call in self.calls)

    def sha256(self) -> str:
        """Return a hash of the text and of the calls' names and arguments as they were written."""
        calls = [[call.name, call.arguments] for call in self.calls]
        return hashlib.sha256(orjson.dumps([calls, self.text])).hexdigest()


@dataclass(slots=True)
class PartialCall:
    """A call that is still arriving."""

    id: str = ""
    name: str = ""
    # Not a list of strings: an event may add only a few characters, but each string takes 60 bytes.
    arguments: StringIO = field(default_factory=StringIO)
    is_custom: bool = False
    whole: str = ""
    """Arguments that count if none arrive in parts."""
    is_whole: bool = False
    """Whether one event had the name and an object of arguments."""


class AnswerRecord:
    """Record of one answer that arrives whole or as events in order.

    A subclass for an API implements `read` with the methods `add_text`, `add_call`, `objects` and
    `count`, and sets the attributes that its answers have.
    """

    last_types: ClassVar[tuple[str, ...]] = ()
    """Types of the events after which nothing belongs to the answer."""

    def __init__(self) -> None:
        self.is_incomplete = False
        """Whether a part of the answer was not read, so that the answer is not kept."""
        self.usage: Usage | None = None
        """The usage that has been reported so far."""
        self.identity = NO_IDENTITY
        self.has_output = False
        """Whether anything but the beginning of an answer has arrived."""
        self.has_stopped = False
        """Whether the answer has said why it ended. Only its usage may follow."""
        self.has_calls = False
        """Whether any call has begun, even one that is not kept."""
        self.is_done = False
        """Whether the last event has arrived."""
        self.stop: Stop | None = None
        """Why the answer ended, if that was not by itself."""
        self.has_refused = False
        """Whether a refusal is a text of its own, as OpenAI writes it."""
        self.has_other_output = False
        """Whether the answer contains output other than text, calls and reasoning."""
        self.written_characters = 0
        """Characters of text, reasoning, refusals and calls in the events so far."""
        self.response_id: str | None = None
        """The id of an answer that the upstream may store."""
        self.last_number = -1
        """The number of the last event, if events have one."""
        self.on_proof: Callable[[str], None] | None = None
        """Called with each proof of reasoning."""
        self.calls: dict[object, PartialCall] = {}
        self._text = StringIO()
        self._characters = 0
        self._parts = 0
        self._has_text = False
        """Whether a part of `_text` is more than white space."""
        self.has_text_delta = False
        """Whether a part of a text has arrived whose whole is still to come."""

    def feed(self, value: Json) -> None:
        """Add a whole answer or one event, already decoded. Any other value is ignored."""
        if isinstance(value, dict):
            self._parts = 0
            self.read(value)
            if self._characters > MAX_ANSWER_CHARACTERS:
                self.give_up()

    def read(self, value: Mapping[str, Json]) -> None:
        """Read a whole answer or one event."""
        raise NotImplementedError

    def text_of(self, value: Json) -> str | None:  # noqa: ARG002 - its interface
        """Return the text that an event adds, or None if it may do anything else.

        The same event with another text must have no other effect than `add_delta`.
        """
        return None

    def add_delta(self, text: str) -> None:
        """Add the text of an event for which `text_of` returns it."""
        self.written_characters += len(text)
        if not self.is_incomplete:
            self._characters += len(text)
            self._text.write(text)
            self._has_text = self._has_text or not (not text or text.isspace())
        if self._characters > MAX_ANSWER_CHARACTERS:
            self.give_up()

    def note_skimmed(self, found: Mapping[str, Json]) -> None:
        """Add what was found in an event that is too large to be decoded: its type and usage."""
        self.usage = read_counts(found.get("usage")) or self.usage
        self.is_done = self.is_done or found.get("type") in self.last_types

    @property
    def is_text(self) -> bool:
        """Whether the answer so far is text without tool calls; white space is no text."""
        return not self.calls and (self.has_text_delta or self._has_text)

    @property
    def characters(self) -> int:
        """The length of what is kept of the answer."""
        return self._characters

    def give_up(self) -> None:
        """Keep nothing of the answer, because it is too long or there is no memory for it."""
        self.is_incomplete = True
        self.clear()

    def clear(self) -> None:
        """Forget the calls and the text that have arrived."""
        self.calls.clear()
        self._text = StringIO()
        self._has_text = False
        self._characters = 0

    def answer(self) -> ParsedAnswer | None:
        """Return the answer, or None if it is too long or was not read completely."""
        if self.is_incomplete:
            return None
        calls = (
            WrittenCall(
                fix_surrogates(call.id),
                fix_surrogates(call.name),
                fix_surrogates(call.arguments.getvalue()) or call.whole,
                call.is_custom,
            )
            for call in self.calls.values()
        )
        text = fix_surrogates(self._text.getvalue())
        stop = Stop.REFUSAL if self.has_refused else self.stop
        return ParsedAnswer(tuple(calls), text, self.usage, stop, self.has_other_output)

    def add_text(self, value: Json) -> None:
        """Add a part of the text."""
        text = self.count(value)
        if text:
            self._text.write(text)
            self._has_text = self._has_text or not text.isspace()

    def add_call(self, place: object) -> PartialCall:
        """Return the call at a place, which is new or still arriving."""
        call = self.calls.get(place)
        self.has_calls = True
        if call is None:
            call = self.calls[place] = PartialCall()
            self._characters += CALL_CHARACTERS
        return call

    def objects(self, value: Json) -> Sequence[Mapping[str, Json]]:
        """Return the objects in a list, or none if the value fed has over `MAX_PARTS` in all."""
        items = (
            [item for item in value if isinstance(item, dict)] if isinstance(value, list) else ()
        )
        self._parts += len(items)
        if self._parts <= MAX_PARTS:
            return items
        self.is_incomplete = True
        return ()

    def count(self, value: Json) -> str:
        """Return a string and count its characters; return an empty string for any other value."""
        text = value if isinstance(value, str) else ""
        self._characters += len(text)
        return text

    def note_proof(self, proof: Json) -> None:
        """Report a proof of reasoning."""
        if self.on_proof is not None and isinstance(proof, str) and proof:
            self.on_proof(proof)


class TranslatedRecord(AnswerRecord):
    """Record of an answer that is translated, from the events that its reader returns."""

    def __init__(self) -> None:
        super().__init__()
        self._places: dict[int, PartialCall | None] = {}
        """The calls by their place, and None for texts. Reasoning and refusals are not kept."""

    def clear(self) -> None:
        """Forget the calls and the text that have arrived."""
        super().clear()
        self._places.clear()

    def add(self, event: Event) -> None:
        """Add the next event."""
        match event:
            case PartGrew(index, text):
                self.written_characters += len(text)
                if index in self._places and not self.is_incomplete:
                    call = self._places[index]
                    if call is None:
                        self.add_text(text)
                    else:
                        call.arguments.write(self.count(text))
            case PartStarted(index, part):
                self._start(index, part)
            case PartProved(_, proof):
                self.note_proof(proof)
            case PartEnded():
                return
            case Started(answer_id, model, usage):
                self.identity = AnswerIdentity.of({"id": answer_id or None, "model": model or None})
                self.usage = usage
            case Finished(stop, usage=usage):
                self.usage = usage or self.usage
                self.stop = stop
                self.has_stopped = self.is_done = True
        if self._characters > MAX_ANSWER_CHARACTERS:
            self.give_up()

    def _start(self, index: int, part: AnswerPart) -> None:
        match part:
            case Thinking(_, proof):
                self.note_proof(proof)
            case Text(_, is_refusal):
                if is_refusal:
                    self.has_other_output = True
                else:
                    self._places[index] = None
            case ToolUse(call_id, name, arguments, is_custom):
                self.written_characters += len(name)
                if not self.is_incomplete:
                    self._places[index] = call = self.add_call(index)
                    call.id, call.name = self.count(call_id), self.count(name)
                    call.is_custom = is_custom
                    call.arguments.write(self.count(arguments))


def write_json(value: Json) -> str:
    """Return the JSON text of a decoded value; lone surrogates are escaped.

    Raises RecursionError for about 1,000 levels.
    """
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return json.dumps(value)
