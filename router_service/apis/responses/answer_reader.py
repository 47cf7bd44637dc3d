"""Reader of answers of Responses, whole and in events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from router_service.apis.answer_errors import ForeignAnswerError
from router_service.apis.answers import AnswerIdentity, AnswerRecord
from router_service.apis.conversation import Json, as_dict, as_list, as_text
from router_service.apis.encoding import fix_surrogates
from router_service.apis.foreign import read_text
from router_service.apis.parts import AnswerPart, Stop, Text, Thinking, ToolUse
from router_service.apis.reading import AnswerReader, OpenPart
from router_service.apis.responses import NAME
from router_service.apis.usage import Usage, read_counts

MAX_SEQUENCE_NUMBER = 2**53
"""Sequence numbers of events from this one on are ignored. JavaScript clients could not add one to
them (RFC 8259, section 6), and the gateway could not write numbers from 2**64 on."""

# Tuples instead of sets, because an upstream may send a type that cannot be hashed, such as a list.
_COMPLETE_TYPES = ("response.completed", "response.incomplete")
_CALL_TYPES = ("function_call", "custom_tool_call")
_EMPTY_TYPES = ("response.created", "response.queued", "response.in_progress")
"""Events that contain nothing of the answer. OpenAI reports rate limits and overload after
`response.created`."""


class ResponsesRecord(AnswerRecord):
    """Record of one answer."""

    last_types = (*_COMPLETE_TYPES, "response.failed")

    def read(self, value: Mapping[str, Json]) -> None:
        """Read a whole answer or one event."""
        kind, delta = value.get("type"), value.get("delta")
        number = value.get("sequence_number")
        if type(number) is int and 0 <= number < MAX_SEQUENCE_NUMBER:
            self.last_number = number
        if not self.has_output:
            self.has_output = not is_beginning(value)
        if isinstance(delta, str):
            self.written_characters += len(delta)
            if kind == "response.output_text.delta" and not self.has_text_delta:
                self.has_text_delta = bool(delta) and not delta.isspace()
            return
        if kind in self.last_types:
            self.is_done = self.has_stopped = True
        response = value.get("response")
        if isinstance(response, dict):
            self._read_response(response)
            output = response.get("output")
            # The last event repeats all earlier items.
            if kind in _COMPLETE_TYPES and isinstance(output, list) and output:
                self._read_output(output)
        elif value.get("object") in ("response", "response.compaction"):
            self._read_response(value)
            self._read_output(value.get("output"))
        elif kind == "response.output_item.done":
            self._read_item(value.get("item"), value.get("output_index"))
            for proof in find_proofs(value):
                self.note_proof(proof)

    def _read_response(self, response: Mapping[str, Json]) -> None:
        self.usage = read_usage(response) or self.usage
        if self.identity.id is None:
            self.identity = AnswerIdentity.of(response)
        self.stop = read_stop(response) or self.stop
        response_id = response.get("id")
        if isinstance(response_id, str) and not self.response_id:
            self.response_id = fix_surrogates(response_id)

    def _read_output(self, output: Json) -> None:
        if self.is_incomplete:
            return
        self.clear()
        for index, item in enumerate(self.objects(output)):
            self._read_item(item, index)

    def _read_item(self, item: Json, index: Json) -> None:
        if not isinstance(item, dict) or self.is_incomplete:
            return
        kind = item.get("type")
        if kind in _CALL_TYPES:
            place = index if isinstance(index, int) else len(self.calls)
            self.calls.pop(place, None)
            call = self.add_call(place)
            call.id, call.name = self.count(item.get("call_id")), self.count(item.get("name"))
            call.is_custom = kind == "custom_tool_call"
            call.arguments.write(self.count(item.get("arguments", item.get("input"))))
        elif kind == "message":
            for part in self.objects(item.get("content")):
                self.add_text(part.get("text"))
                self.has_refused = self.has_refused or bool(part.get("refusal"))
                self.has_other_output = self.has_other_output or self.has_refused
        elif kind != "reasoning":
            self.has_other_output = True


def is_beginning(event: Mapping[str, Json]) -> bool:
    """Return whether an event contains nothing of the answer."""
    return event.get("type") in _EMPTY_TYPES


def read_usage(value: Json, before: Usage | None = None) -> Usage | None:  # noqa: ARG001 - the interface's
    """Return the usage of an answer, or of an event that contains the response."""
    usage = value.get("usage")
    if not isinstance(usage, dict):
        usage = as_dict(value.get("response")).get("usage")
    return None if usage is None else read_counts(usage)


def read_stop(response: Mapping[str, Json]) -> Stop | None:
    """Return why an answer is incomplete, or None if it is not."""
    if response.get("status") != "incomplete":
        return None
    reason = as_dict(response.get("incomplete_details")).get("reason")
    return Stop.FILTER if reason == "content_filter" else Stop.LENGTH


def find_proofs(value: Mapping[str, Json]) -> Iterator[str]:
    """Yield the proofs of reasoning in a whole answer or in an event."""
    items = (value.get("item"),) if "item" in value else value.get("output")
    for item in items if isinstance(items, (list, tuple)) else ():
        if isinstance(item, dict) and item.get("type") == "reasoning":
            proof = item.get("encrypted_content")
            if isinstance(proof, str) and proof:
                yield proof


_BETWEEN_SUMMARIES = "\n\n"

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


class ResponsesReader(AnswerReader):
    """Reader of one answer. Servers leave out deltas, or all events of an item but its last one.

    Only the last event of an item is sure to have all of its text.
    """

    api = NAME

    def __init__(self) -> None:
        super().__init__()
        self._open: dict[int, dict[int, OpenPart]] = {}
        """The parts that have not ended, by the places of their item and in its content."""
        self._items: set[int] = set()
        """The places of the items that are complete."""
        self._summaries: dict[int, tuple[str, Json]] = {}
        """The kind of each reasoning's text, and the place of the summary that is being read."""

    def read_whole(self, value: Json) -> None:
        """Read a whole answer."""
        if not isinstance(value, dict) or value.get("object") != "response":
            raise self.foreign("is not a response")
        if not isinstance(value.get("output"), list):
            raise self.foreign("has no list of output items")
        status = value.get("status", "completed")
        if status not in ("completed", "incomplete"):
            raise self.foreign(f"has the status {status!r:.50}")
        self.read({"type": _COMPLETE_TYPES[0], "response": value})

    def read(self, event: Json) -> None:
        """Read one event."""
        kind = event.get("type") if isinstance(event, dict) else None
        if not isinstance(event, dict) or not isinstance(kind, str):
            raise self.foreign("has an event without a type")
        if self._has_finished or kind == "keepalive":
            return
        base, _, verb = kind.rpartition(".")
        response = event.get("response")
        if verb == "delta" and base in _PARTS:
            self._read_delta(base, event, event.get("delta"))
        elif kind == "response.output_item.added":
            self._start_item(event)
        elif kind == "response.output_item.done":
            self._end_item(event.get("item"), event.get("output_index"))
        elif kind in _FAILURES:
            raise self.foreign("reports an error")
        elif isinstance(response, dict):
            self.begin(response)
            if kind in _COMPLETE_TYPES:
                for index, item in enumerate(as_list(response.get("output"))):
                    if index not in self._items:
                        self._end_item(item, index)
                self.usage = read_usage(response)
                self._stop = read_stop(response) or Stop.END
                self.finish()
        elif not self._has_started:
            raise self.foreign(f"begins with an event of the type {kind!r:.50}")

    def end_parts(self) -> None:
        """End the parts of all items."""
        for place in list(self._open):
            self._end_parts(place)

    def _start_item(self, event: dict[str, Json]) -> None:
        item, place = event.get("item"), event.get("output_index")
        kind = item.get("type") if isinstance(item, dict) else None
        if isinstance(item, dict) and kind in _CALL_TYPES and type(place) is int:
            is_custom = kind == "custom_tool_call"
            self._start_part(place, 0, _read_call(item, is_custom=is_custom, arguments=""))
        elif kind not in ("message", "reasoning"):
            raise self._unknown_item(kind)

    def _start_part(self, item: int, content: int, part: AnswerPart) -> OpenPart:
        if not self._has_started:
            raise self.foreign("has output before its start")
        opened = self._open.setdefault(item, {})
        if content in opened or item in self._items:
            raise self.foreign("starts two parts at the same place")
        opened[content] = self.start(part)
        return opened[content]

    def _find(self, base: str, event: dict[str, Json]) -> OpenPart:
        """Return the part to which an event adds; start it if no event has started it."""
        item, content = event.get("output_index"), event.get("content_index", 0)
        empty = _PARTS[base]
        if type(item) is not int or type(content) is not int:
            raise self.foreign("has an event without a place")
        if not isinstance(empty, Text):
            content = 0  # the parts of a summary are one part here
        if item in self._items:
            raise self.foreign("continues an item that was complete")
        part = self._open.get(item, {}).get(content)
        if part is None:
            if isinstance(empty, ToolUse):
                raise self.foreign("continues a call that has not started")
            part = self._start_part(item, content, empty)
        if type(part.part) is not type(empty):
            raise self.foreign("continues an item of another type")
        return part

    def _read_delta(self, base: str, event: dict[str, Json], text: Json) -> None:
        if not isinstance(text, str):
            raise self.foreign("has a delta that is not a text")
        if not text:
            return
        opened = self._find(base, event)
        if isinstance(opened.part, Thinking):
            source = base, event.get("summary_index")
            before = self._summaries.setdefault(opened.index, source)
            if before[0] != base:
                return  # the summary of what has been read, or the reverse
            if before != source:
                self.grow(opened, _BETWEEN_SUMMARIES)
            self._summaries[opened.index] = source
        self.grow(opened, text)

    def _end_item(self, item: Json, place: Json) -> None:
        """End the parts of an item, and add what the deltas have left out."""
        if type(place) is not int or place in self._items:
            raise self.foreign("ends an item at an invalid place")
        parts = self._open.get(place, {})
        for content, part in enumerate(self._read_item(item)):
            if isinstance(part, ToolUse):
                text = part.arguments
                start: AnswerPart = replace(part, arguments="")
            else:
                text, start = part.text, replace(part, text="")
            if part == Text("") and content not in parts:
                continue  # Anthropic rejects messages with empty texts
            opened = parts.get(content) or self._start_part(place, content, start)
            if type(opened.part) is not type(part):
                raise self.foreign("ends an item with another type")
            is_read = isinstance(part, Thinking) and opened.characters > 0
            if not is_read:
                self.grow(opened, text[opened.characters :])
            if isinstance(part, Thinking) and part.proof:
                self.prove(opened, part.proof)
        self._end_parts(place)

    def _end_parts(self, place: int) -> None:
        for opened in self._open.pop(place, {}).values():
            self.close(opened)
        self._items.add(place)

    def _read_item(self, item: Json) -> list[AnswerPart]:
        """Return the parts of an output item."""
        fields = as_dict(item)
        match fields.get("type"):
            case "message":
                return [self._read_content(part) for part in as_list(fields.get("content"))]
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
                raise self._unknown_item(kind)

    def _read_content(self, part: Json) -> Text:
        match part:
            case {"type": "output_text", "text": str(text)}:
                return Text(text)
            case {"type": "refusal", "refusal": str(text)}:
                return Text(text, is_refusal=True)
            case _:
                raise self.foreign("has content that cannot be translated")

    def _unknown_item(self, kind: Json) -> ForeignAnswerError:
        return self.foreign(f"has an item of the type {kind!r:.50}, which cannot be translated")


def _read_call(item: dict[str, Json], *, is_custom: bool, arguments: str) -> ToolUse:
    call_id, name = as_text(item.get("call_id")), as_text(item.get("name"))
    return ToolUse(call_id, name, arguments, is_custom=is_custom)


def _join(parts: Json, separator: str) -> str:
    texts = [as_dict(part).get("text") for part in as_list(parts)]
    return separator.join(text for text in texts if isinstance(text, str))
