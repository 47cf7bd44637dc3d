"""What an answer says: its tool calls and its text, whole or event by event, in both APIs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO

import orjson

from router_service.core.messages import Json

MAX_SAID_CHARACTERS = 1024 * 1024
"""Of an answer that says more nothing is kept."""

CALL_CHARACTERS = 300
"""What a call counts for beside its arguments: so many bytes it takes."""

MAX_PARTS = 5_000
"""Choices, calls and items of an answer, or of one event, that are listened to, in 5 ms. An answer
with more of them is not kept."""

# Tuples, not sets: what an upstream sends as a type may be a list, which no set is asked for.
_LAST_TYPES = ("response.completed", "response.incomplete")
_CALL_TYPES = ("function_call", "custom_tool_call")


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A tool call as a model wrote it; `arguments` is text, and JSON where it is a function's."""

    id: str
    """Empty where there is none."""
    name: str
    arguments: str
    is_custom: bool = False
    """Whether the arguments are free text (a custom tool)."""

    def decoded(self) -> dict[str, Json] | None:
        """Return the arguments, or None where they are no JSON object."""
        try:
            value = orjson.loads(self.arguments)
        except orjson.JSONDecodeError:
            return None
        return value if isinstance(value, dict) else None


@dataclass(frozen=True, slots=True)
class Said:
    """What an answer said; of several choices the first."""

    calls: tuple[WrittenCall, ...] = ()
    text: str = ""

    @property
    def characters(self) -> int:
        """How long the text and the calls' arguments are."""
        return len(self.text) + sum(len(call.arguments) for call in self.calls)

    def sha256(self) -> str:
        """Return a hash of the calls' names and arguments, as they were written, and the text."""
        calls = [[call.name, call.arguments] for call in self.calls]
        return hashlib.sha256(orjson.dumps([calls, self.text])).hexdigest()


def well_formed(text: str) -> str:
    r"""Return a text that can be encoded: halves of surrogate pairs are joined or become `?`.

    Providers split an emoji between two deltas: `"\ud83d"` and `"\ude00"` are one character of
    the answer. A half alone cannot be encoded (Unicode standard, section 3.9).
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return _HALVES.sub(_joined, text, MAX_JOINED).encode(errors="replace").decode()
    return text


MAX_JOINED = 10_000
"""Characters of an answer that are joined, which takes 20 ms for so many."""
_HALVES = re.compile("[\ud800-\udbff][\udc00-\udfff]")


def _joined(halves: re.Match[str]) -> str:
    return halves[0].encode("utf-16-le", "surrogatepass").decode("utf-16-le")


@dataclass(slots=True)
class _Partial:
    id: str = ""
    name: str = ""
    # Not a list of parts: an event may add a few characters, and a part takes 60 bytes.
    arguments: StringIO = field(default_factory=StringIO)
    is_custom: bool = False

    def call(self) -> WrittenCall:
        arguments = well_formed(self.arguments.getvalue())
        return WrittenCall(well_formed(self.id), well_formed(self.name), arguments, self.is_custom)


class Listener:
    """Hears an answer, whole or its events in order."""

    def __init__(self) -> None:
        self._calls: dict[object, _Partial] = {}
        self._text = StringIO()
        self._characters = 0
        self._parts = 0
        self.has_missed = False
        """Whether a part of the answer was not heard."""

    def said(self) -> Said | None:
        """Return what was said, or None where not all of it was heard."""
        if self.has_missed or self._characters > MAX_SAID_CHARACTERS:
            return None
        calls = (partial.call() for partial in self._calls.values())
        text = well_formed(self._text.getvalue())
        return Said(tuple(call for call in calls if call.name), text)

    def hear(self, value: Json) -> None:
        """Take in a whole answer or one event, decoded; what is of neither API says nothing."""
        if not isinstance(value, dict) or self._characters > MAX_SAID_CHARACTERS:
            return
        self._parts = 0
        if "choices" in value:
            self._hear_choices(value["choices"])
        elif value.get("object") == "response":
            self._hear_output(value.get("output"))
        elif value.get("type") in _LAST_TYPES:
            self._hear_last(value.get("response"))
        elif value.get("type") == "response.output_item.done":
            self._hear_item(value.get("item"), value.get("output_index"))

    def _hear_choices(self, choices: Json) -> None:
        for choice in self._each(choices):
            if choice.get("index", 0) == 0:
                said = choice.get("delta", choice.get("message"))
                self._hear_message(said if isinstance(said, dict) else {})

    def _hear_message(self, message: Mapping[str, Json]) -> None:
        self._add_text(message.get("content"))
        for call in self._each(message.get("tool_calls")):
            # Without a number a call has an id of its own, and what has neither goes on with it.
            place = call.get("index", call.get("id")) or 0
            self._add_call(place if isinstance(place, int | str) else 0, call)
        legacy = message.get("function_call")
        if isinstance(legacy, dict):
            self._add_call("function_call", {"function": legacy})

    def _add_call(self, place: object, call: Mapping[str, Json]) -> None:
        if place not in self._calls:
            self._calls[place] = _Partial()
            self._characters += CALL_CHARACTERS
        partial = self._calls[place]
        inner = call.get("function", call.get("custom"))
        inner = inner if isinstance(inner, dict) else {}
        partial.is_custom = partial.is_custom or "custom" in call
        partial.id = partial.id or self._counted(call.get("id"))
        partial.name = partial.name or self._counted(inner.get("name"))
        self._add_arguments(partial, inner.get("arguments", inner.get("input")))

    def _hear_last(self, response: Json) -> None:
        """Take a stream's last event, which repeats all of it, in place of what came before."""
        output = response.get("output") if isinstance(response, dict) else None
        if isinstance(output, list) and output:
            self._calls.clear()
            self._text = StringIO()
            self._characters = 0
            self._hear_output(output)

    def _hear_output(self, output: Json) -> None:
        for index, item in enumerate(self._each(output)):
            self._hear_item(item, index)

    def _hear_item(self, item: Json, index: Json) -> None:
        if not isinstance(item, dict):
            return
        kind = item.get("type")
        if kind in _CALL_TYPES:
            name, is_custom = self._counted(item.get("name")), kind == "custom_tool_call"
            place = index if isinstance(index, int) else len(self._calls)
            partial = _Partial(self._counted(item.get("call_id")), name, is_custom=is_custom)
            self._calls[place] = partial
            self._characters += CALL_CHARACTERS
            self._add_arguments(partial, item.get("arguments", item.get("input")))
        for part in self._each(item.get("content")) if kind == "message" else ():
            self._add_text(part.get("text"))

    def _each(self, value: Json) -> Sequence[Mapping[str, Json]]:
        """Return the objects of a list, or none if there are too many in all."""
        items = _objects(value)
        self._parts += len(items)
        if self._parts <= MAX_PARTS:
            return items
        self.has_missed = True
        return ()

    def _add_arguments(self, partial: _Partial, arguments: Json) -> None:
        partial.arguments.write(self._counted(arguments))

    def _add_text(self, content: Json) -> None:
        self._text.write(self._counted(content))

    def _counted(self, value: Json) -> str:
        """Return a string, or an empty one for any other value, and count its characters."""
        text = value if isinstance(value, str) else ""
        self._characters += len(text)
        return text


def said_by(answer: Json) -> Said | None:
    """Return what a whole answer says, or None where it is too much."""
    listener = Listener()
    listener.hear(answer)
    return listener.said()


def _objects(value: Json) -> Sequence[Mapping[str, Json]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else ()
