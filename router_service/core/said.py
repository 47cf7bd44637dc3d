"""What an answer says: its tool calls and its text, whole or event by event, in both APIs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import orjson

from router_service.core.messages import Json

MAX_SAID_CHARACTERS = 1024 * 1024
"""Of an answer that says more nothing is kept."""

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

    def sha256(self) -> str:
        """Return a hash of the calls' names and arguments, as they were written, and the text."""
        calls = [[call.name, call.arguments] for call in self.calls]
        return hashlib.sha256(orjson.dumps([calls, self.text])).hexdigest()


@dataclass(slots=True)
class _Partial:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    is_custom: bool = False

    def call(self) -> WrittenCall:
        return WrittenCall(self.id, self.name, "".join(self.arguments), self.is_custom)


class Listener:
    """Hears an answer, whole or its events in order."""

    def __init__(self) -> None:
        self._calls: dict[object, _Partial] = {}
        self._texts: list[str] = []
        self._characters = 0
        self.has_missed = False
        """Whether a part of the answer was not heard."""

    def said(self) -> Said | None:
        """Return what was said, or None where not all of it was heard."""
        if self.has_missed or self._characters > MAX_SAID_CHARACTERS:
            return None
        calls = (partial.call() for partial in self._calls.values())
        return Said(tuple(call for call in calls if call.name), "".join(self._texts))

    def hear(self, value: Json) -> None:
        """Take in a whole answer or one event, decoded; what is of neither API says nothing."""
        if not isinstance(value, dict) or self._characters > MAX_SAID_CHARACTERS:
            return
        if "choices" in value:
            self._hear_choices(value["choices"])
        elif value.get("object") == "response":
            self._hear_output(value.get("output"))
        elif value.get("type") in _LAST_TYPES:
            self._hear_last(value.get("response"))
        elif value.get("type") == "response.output_item.done":
            self._hear_item(value.get("item"), value.get("output_index"))

    def _hear_choices(self, choices: Json) -> None:
        for choice in _objects(choices):
            if choice.get("index", 0) == 0:
                said = choice.get("delta", choice.get("message"))
                self._hear_message(said if isinstance(said, dict) else {})

    def _hear_message(self, message: Mapping[str, Json]) -> None:
        self._add_text(message.get("content"))
        for call in _objects(message.get("tool_calls")):
            # Without a number a call has an id of its own, and what has neither goes on with it.
            place = call.get("index", call.get("id")) or 0
            self._add_call(place if isinstance(place, int | str) else 0, call)
        legacy = message.get("function_call")
        if isinstance(legacy, dict):
            self._add_call("function_call", {"function": legacy})

    def _add_call(self, place: object, call: Mapping[str, Json]) -> None:
        partial = self._calls.setdefault(place, _Partial())
        self._characters += 1
        inner = call.get("function", call.get("custom"))
        inner = inner if isinstance(inner, dict) else {}
        partial.is_custom = partial.is_custom or "custom" in call
        partial.id = partial.id or _text(call.get("id"))
        partial.name = partial.name or _text(inner.get("name"))
        self._add_arguments(partial, inner.get("arguments", inner.get("input")))

    def _hear_last(self, response: Json) -> None:
        """Take a stream's last event, which repeats all of it, in place of what came before."""
        output = response.get("output") if isinstance(response, dict) else None
        if isinstance(output, list) and output:
            self._calls.clear()
            self._texts.clear()
            self._characters = 0
            self._hear_output(output)

    def _hear_output(self, output: Json) -> None:
        for index, item in enumerate(_objects(output)):
            self._hear_item(item, index)

    def _hear_item(self, item: Json, index: Json) -> None:
        if not isinstance(item, dict):
            return
        kind = item.get("type")
        if kind in _CALL_TYPES:
            name, is_custom = _text(item.get("name")), kind == "custom_tool_call"
            place = index if isinstance(index, int) else len(self._calls)
            partial = _Partial(_text(item.get("call_id")), name, is_custom=is_custom)
            self._calls[place] = partial
            self._add_arguments(partial, item.get("arguments", item.get("input")))
        for part in _objects(item.get("content")) if kind == "message" else ():
            self._add_text(part.get("text"))

    def _add_arguments(self, partial: _Partial, arguments: Json) -> None:
        text = _text(arguments)
        partial.arguments.append(text)
        self._characters += len(text)

    def _add_text(self, content: Json) -> None:
        text = _text(content)
        self._texts.append(text)
        self._characters += len(text)


def said_by(answer: Json) -> Said | None:
    """Return what a whole answer says, or None where it is too much."""
    listener = Listener()
    listener.hear(answer)
    return listener.said()


def _objects(value: Json) -> Sequence[Mapping[str, Json]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else ()


def _text(value: Json) -> str:
    return value if isinstance(value, str) else ""
