"""Reader of answers of Responses, whole and in events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from router_service.apis.answer_errors import (
    ForeignAnswerError,
)
from router_service.apis.conversation import Json, as_dict, as_list, as_text
from router_service.apis.foreign import read_text
from router_service.apis.parts import (
    Answer,
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
from router_service.apis.responses import NAME
from router_service.apis.responses.record import read_usage
from router_service.apis.usage import Usage

# Tuples instead of sets, because an upstream may send a type that cannot be hashed, such as a list.
_CALL_TYPES = ("function_call", "custom_tool_call")

_BETWEEN_SUMMARIES = "\n\n"

_LAST = ("response.completed", "response.incomplete")

_FAILURES = ("error", "response.failed", "response.cancelled")

_PARTS: dict[str, AnswerPart] = {
    "response.output_text": Text(""),
    "response.refusal": Text("", is_refusal=True),
    "response.function_call_arguments": ToolUse("", "", ""),
    "response.custom_tool_call_input": ToolUse("", "", "", is_custom=True),
    "response.reasoning_summary_text": Thinking("", origin=NAME),
    "response.reasoning_text": Thinking("", origin=NAME),
}
"""Events that add to a part, without `.delta`, and an empty part of that kind. The `.done` events
of these parts are not read, because the last event of the item repeats them."""


@dataclass(slots=True)
class _Open:
    """A part that has begun. Only the last event of a part is sure to have all of its text."""

    index: int
    part: AnswerPart
    characters: int = 0
    source: tuple[str, Json] | None = None
    """The kind of the reasoning's text, and the place of the summary that is being read."""


class ResponsesReader:
    """Reader of one answer. Servers leave out deltas, or all events of an item but its last one."""

    def __init__(self) -> None:
        self.usage: Usage | None = None
        """The usage that the answer has reported so far."""
        self.default_stop: Stop | None = None
        """If it is set, an answer without its last event is complete."""
        self._events: list[Event] = []
        self._next = 0
        """The place of the next part."""
        self._open: dict[int, dict[int, _Open]] = {}
        """The parts that have not ended, by the places of their item and in its content."""
        self._items: set[int] = set()
        """The places of the items that are complete."""
        self._has_started = False
        self._has_finished = False
        self._has_calls = False
        self._has_refused = False

    def whole(self, value: Json) -> Answer:
        """Read a whole answer; raise ForeignAnswerError."""
        if not isinstance(value, dict) or value.get("object") != "response":
            raise _foreign("is not a response")
        output = value.get("output")
        if not isinstance(output, list):
            raise _foreign("has no list of output items")
        parts = [part for item in output for part in _read_item(item) if part != Text("")]
        self._has_calls = any(isinstance(part, ToolUse) for part in parts)
        self._has_refused = any(isinstance(part, Text) and part.is_refusal for part in parts)
        head = read_text(value.get("id")), read_text(value.get("model"))
        status = value.get("status", "completed")
        if status not in ("completed", "incomplete"):
            raise _foreign(f"has the status {status!r:.50}")
        stop = self._read_stop(value, is_cut=status == "incomplete")
        return Answer(*head, tuple(parts), stop, usage=read_usage(value))

    def feed(self, event: Json) -> Sequence[Event]:
        """Read one event; raise ForeignAnswerError."""
        kind = event.get("type") if isinstance(event, dict) else None
        if not isinstance(event, dict) or not isinstance(kind, str):
            raise _foreign("has an event without a type")
        base, _, verb = kind.rpartition(".")
        response = event.get("response")
        self._events = []
        if self._has_finished or kind == "keepalive":
            return ()
        if verb == "delta" and base in _PARTS:
            self._grow(base, event, event.get("delta"))
        elif kind == "response.output_item.added":
            self._start_item(event)
        elif kind == "response.output_item.done":
            self._end_item(event.get("item"), event.get("output_index"))
        elif kind in _FAILURES:
            raise _foreign("reports an error")
        elif isinstance(response, dict):
            if not self._has_started:
                self._has_started = True
                head = read_text(response.get("id")), read_text(response.get("model"))
                self._events.append(Started(*head))
            if kind in _LAST:
                self._finish(response)
        elif not self._has_started:
            raise _foreign(f"begins with an event of the type {kind!r:.50}")
        return self._events

    def end(self) -> Sequence[Event]:
        """Return the events that complete the answer; raise ForeignAnswerError."""
        if self._has_finished:
            return ()
        if self.default_stop is None or not self._has_started:
            raise _foreign("ended before it was complete")
        self._events = []
        self._finish({})
        return self._events

    def _finish(self, response: dict[str, Json]) -> None:
        for index, item in enumerate(as_list(response.get("output"))):
            if index not in self._items:
                self._end_item(item, index)
        for place in list(self._open):
            self._end_parts(place)
        self._has_finished = True
        is_cut = response.get("status") == "incomplete"
        stop = self._read_stop(response, is_cut=is_cut)
        self.usage = read_usage(response)
        self._events.append(Finished(stop, usage=self.usage))

    def _start_item(self, event: dict[str, Json]) -> None:
        item, place = event.get("item"), event.get("output_index")
        kind = item.get("type") if isinstance(item, dict) else None
        if isinstance(item, dict) and kind in _CALL_TYPES and type(place) is int:
            is_custom = kind == "custom_tool_call"
            self._start_part(place, 0, _read_call(item, is_custom=is_custom, arguments=""))
        elif kind not in ("message", "reasoning"):
            raise _unknown_item(kind)

    def _start_part(self, item: int, content: int, part: AnswerPart) -> _Open:
        if not self._has_started:
            raise _foreign("has output before its start")
        opened = self._open.setdefault(item, {})
        if content in opened or item in self._items:
            raise _foreign("starts two parts at the same place")
        self._has_calls = self._has_calls or isinstance(part, ToolUse)
        is_refusal = isinstance(part, Text) and part.is_refusal
        self._has_refused = self._has_refused or is_refusal
        opened[content] = _Open(self._next, part)
        self._events.append(PartStarted(self._next, part))
        self._next += 1
        return opened[content]

    def _find(self, base: str, event: dict[str, Json]) -> _Open:
        """Return the part to which an event adds; start it if no event has started it."""
        item, content = event.get("output_index"), event.get("content_index", 0)
        empty = _PARTS[base]
        if type(item) is not int or type(content) is not int:
            raise _foreign("has an event without a place")
        if not isinstance(empty, Text):
            content = 0  # the parts of a summary are one part here
        if item in self._items:
            raise _foreign("continues an item that was complete")
        part = self._open.get(item, {}).get(content)
        if part is None:
            if isinstance(empty, ToolUse):
                raise _foreign("continues a call that has not started")
            part = self._start_part(item, content, empty)
        if type(part.part) is not type(empty):
            raise _foreign("continues an item of another type")
        return part

    def _grow(self, base: str, event: dict[str, Json], text: Json) -> None:
        if not isinstance(text, str):
            raise _foreign("has a delta that is not a text")
        if not text:
            return
        part = self._find(base, event)
        if isinstance(part.part, Thinking):
            source = base, event.get("summary_index")
            if part.source is not None and part.source[0] != base:
                return  # the summary of what has been read, or the reverse
            if part.source is not None and part.source != source:
                self._events.append(PartGrew(part.index, _BETWEEN_SUMMARIES))
            part.source = source
        part.characters += len(text)
        self._events.append(PartGrew(part.index, text))

    def _end_item(self, item: Json, place: Json) -> None:
        """End the parts of an item, and add what the deltas have left out."""
        if type(place) is not int or place in self._items:
            raise _foreign("ends an item at an invalid place")
        parts = self._open.get(place, {})
        for content, part in enumerate(_read_item(item)):
            if isinstance(part, ToolUse):
                text = part.arguments
                start: AnswerPart = replace(part, arguments="")
            else:
                text, start = part.text, replace(part, text="")
            if part == Text("") and content not in parts:
                continue  # Anthropic rejects messages with empty texts
            opened = parts.get(content) or self._start_part(place, content, start)
            if type(opened.part) is not type(part):
                raise _foreign("ends an item with another type")
            is_read = isinstance(part, Thinking) and opened.characters > 0
            if len(text) > opened.characters and not is_read:
                self._events.append(PartGrew(opened.index, text[opened.characters :]))
                opened.characters = len(text)
            if isinstance(part, Thinking) and part.proof:
                self._events.append(PartProved(opened.index, part.proof))
        self._end_parts(place)

    def _end_parts(self, place: int) -> None:
        for part in self._open.pop(place, {}).values():
            if isinstance(part.part, ToolUse) and not (part.part.is_custom or part.characters):
                self._events.append(PartGrew(part.index, "{}"))
            self._events.append(PartEnded(part.index))
        self._items.add(place)

    def _read_stop(self, response: dict[str, Json], *, is_cut: bool) -> Stop:
        reason = as_dict(response.get("incomplete_details")).get("reason")
        if is_cut:
            return Stop.FILTER if reason == "content_filter" else Stop.LENGTH
        if self._has_calls:
            return Stop.CALLS
        return Stop.REFUSAL if self._has_refused else Stop.END


def _read_item(item: Json) -> list[AnswerPart]:
    """Return the parts of an output item."""
    fields = as_dict(item)
    match fields.get("type"):
        case "message":
            return [_read_content(part) for part in as_list(fields.get("content"))]
        case "function_call":
            text = as_text(fields.get("arguments")) or "{}"
            return [_read_call(fields, is_custom=False, arguments=text)]
        case "custom_tool_call":
            return [_read_call(fields, is_custom=True, arguments=as_text(fields.get("input")))]
        case "reasoning":
            text = _join(fields.get("summary"), _BETWEEN_SUMMARIES) or _join(
                fields.get("content"), ""
            )
            proof = read_text(fields.get("encrypted_content"))
            if not (text or proof):
                return []
            return [Thinking(text, proof, is_hidden=not text, origin=NAME)]
        case kind:
            raise _unknown_item(kind)


def _read_content(part: Json) -> Text:
    match part:
        case {"type": "output_text", "text": str(text)}:
            return Text(text)
        case {"type": "refusal", "refusal": str(text)}:
            return Text(text, is_refusal=True)
        case _:
            raise _foreign("has content that cannot be translated")


def _read_call(item: dict[str, Json], *, is_custom: bool, arguments: str) -> ToolUse:
    call_id, name = as_text(item.get("call_id")), as_text(item.get("name"))
    return ToolUse(call_id, name, arguments, is_custom=is_custom)


def _join(parts: Json, separator: str) -> str:
    texts = [as_dict(part).get("text") for part in as_list(parts)]
    return separator.join(text for text in texts if isinstance(text, str))


def _unknown_item(kind: Json) -> ForeignAnswerError:
    return _foreign(f"has an item of the type {kind!r:.50}, which cannot be translated")


def _foreign(problem: str) -> ForeignAnswerError:
    return ForeignAnswerError(NAME, problem)
