"""Reader of answers of Messages, whole and in events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from router_service.apis.answer_errors import ForeignAnswerError
from router_service.apis.conversation import Json, as_dict, as_text
from router_service.apis.foreign import from_input, read_text
from router_service.apis.messages import NAME
from router_service.apis.messages.record import STOPS, read_usage
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
from router_service.apis.surrogates import fix_surrogates
from router_service.apis.usage import Usage

DELTAS = {
    Text: ("text_delta", "text"),
    ToolUse: ("input_json_delta", "partial_json"),
    Thinking: ("thinking_delta", "thinking"),
}
"""Types of the deltas of each part, and the field that has their text."""


@dataclass(slots=True)
class _Block:
    part: AnswerPart
    has_text: bool = False
    """Whether any text has arrived. A part with text begins only then, because Anthropic rejects
    messages with empty texts."""


class MessagesReader:
    """Reader of one answer."""

    def __init__(self) -> None:
        self._blocks: dict[int, _Block] = {}  # the blocks that have not ended
        self._next = 0
        self._has_calls = False
        self._has_started = False
        self._has_finished = False
        self._stop: Stop | None = None
        self._stop_text: str | None = None
        self._explanation = ""
        self.usage: Usage | None = None
        """The usage that the answer has reported so far."""
        self.default_stop: Stop | None = None
        """Why an answer has ended whose last event gives no reason; if None, it is incomplete."""

    def whole(self, value: Json) -> Answer:
        """Read a whole answer; raise ForeignAnswerError."""
        if not isinstance(value, dict) or value.get("type") != "message":
            raise _foreign("is not a message")
        content = value.get("content")
        if not isinstance(content, list):
            raise _foreign("has no list of content")
        parts = [part for block in content if (part := _read_block(block)) != Text("")]
        self._read_stop(value)
        if self._explanation:
            parts.append(Text(self._explanation, is_refusal=True))
        head = read_text(value.get("id")), read_text(value.get("model"))
        stop = self._stop or Stop.END
        if stop in {Stop.END, Stop.CALLS}:
            stop = Stop.CALLS if any(isinstance(part, ToolUse) for part in parts) else Stop.END
        return Answer(*head, tuple(parts), stop, self._stop_text, read_usage(value))

    def feed(self, event: Json) -> Sequence[Event]:
        """Read one event; raise ForeignAnswerError."""
        if not isinstance(event, dict):
            raise _foreign("has an event that is not an object")
        events: Sequence[Event] = ()
        match event.get("type"):
            case "content_block_delta":
                events = self._read_delta(event)
            case "content_block_start":
                events = self._start_block(event)
            case "content_block_stop":
                events = self._end_block(event.get("index"))
            case "message_start":
                message = event.get("message")
                if self._has_started or not isinstance(message, dict):
                    raise _foreign("has an invalid start")
                self._has_started = True
                self.usage = read_usage(event)
                head = read_text(message.get("id")), read_text(message.get("model"))
                events = (Started(*head, self.usage),)
            case "message_delta":
                self._read_stop(as_dict(event.get("delta")))
                self.usage = read_usage(event, self.usage) or self.usage
            case "message_stop":
                events = self.end()
            case "ping":
                pass
            case kind:
                # Anthropic adds types of events, which clients must ignore ("Streaming", other
                # events).
                if not isinstance(kind, str) or kind == "error" or not self._has_started:
                    raise _foreign(f"has an unexpected event of the type {kind!r:.50}")
        return events

    def end(self) -> Sequence[Event]:
        """Return the events that complete the answer; raise ForeignAnswerError."""
        if self._has_finished:
            return ()
        stop = self._stop or self.default_stop
        if stop is None or not self._has_started:
            raise _foreign("ended before it was complete")
        self._has_finished = True
        if stop in {Stop.END, Stop.CALLS}:
            stop = Stop.CALLS if self._has_calls else Stop.END
        events: list[Event] = []
        for index in list(self._blocks):
            events += self._end_block(index)
        if self._explanation:
            refusal = Text("", is_refusal=True)
            events += [
                PartStarted(self._next, refusal),
                PartGrew(self._next, self._explanation),
                PartEnded(self._next),
            ]
        return [*events, Finished(stop, self._stop_text, self.usage)]

    def _start_block(self, event: dict[str, Json]) -> Sequence[Event]:
        index = event.get("index")
        if type(index) is not int or index < self._next or not self._has_started:
            raise _foreign("starts a block at an invalid place")
        part = _read_block(event.get("content_block"))
        # The input of a call is empty here, and deltas follow. A server that sends no deltas may
        # have put the whole input here.
        self._blocks[index] = _Block(part)
        self._next = index + 1
        self._has_calls = self._has_calls or isinstance(part, ToolUse)
        if isinstance(part, ToolUse):
            return (PartStarted(index, replace(part, arguments="")),)
        if isinstance(part, Thinking):
            started = PartStarted(index, replace(part, text=""))
            return (started, PartGrew(index, part.text)) if part.text else (started,)
        return self._grow(index, part.text)

    def _read_delta(self, event: dict[str, Json]) -> Sequence[Event]:
        index, delta = event.get("index"), event.get("delta")
        block = self._blocks.get(index) if type(index) is int else None
        if type(index) is not int or block is None or not isinstance(delta, dict):
            raise _foreign("has a delta without a block")
        kind = delta.get("type")
        if kind == "signature_delta" and isinstance(block.part, Thinking):
            return (PartProved(index, read_text(delta.get("signature"))),)
        if kind == "citations_delta":
            return ()  # the text is complete without them
        expected, name = DELTAS[type(block.part)]
        text = delta.get(name)
        if kind != expected or not isinstance(text, str):
            raise _foreign(f"has an unexpected delta of the type {kind!r:.50}")
        return self._grow(index, text)

    def _grow(self, index: int, text: str) -> Sequence[Event]:
        if not text:
            return ()
        block, grown = self._blocks[index], PartGrew(index, text)
        is_first, block.has_text = not block.has_text, True
        if is_first and isinstance(block.part, Text):
            return (PartStarted(index, Text("")), grown)
        return (grown,)

    def _end_block(self, index: Json) -> Sequence[Event]:
        block = self._blocks.pop(index, None) if type(index) is int else None
        if block is None:
            raise _foreign("ends a block that has not started")
        if block.has_text or isinstance(block.part, Thinking):
            return (PartEnded(index),)
        if isinstance(block.part, ToolUse):
            return (PartGrew(index, block.part.arguments), PartEnded(index))
        return ()

    def _read_stop(self, fields: dict[str, Json]) -> None:
        reason, stop_text = fields.get("stop_reason"), fields.get("stop_sequence")
        details = fields.get("stop_details")
        if isinstance(reason, str) and reason:
            self._stop = STOPS.get(reason, Stop.END)
        if isinstance(stop_text, str):
            self._stop_text = fix_surrogates(stop_text)
        if isinstance(details, dict) and self._stop is Stop.REFUSAL:
            self._explanation = read_text(details.get("explanation"))


def _read_block(block: Json) -> AnswerPart:
    fields = as_dict(block)
    match fields.get("type"):
        case "text":
            return Text(read_text(fields.get("text")))
        case "tool_use":
            text = from_input(as_dict(fields.get("input")))
            return ToolUse(as_text(fields.get("id")), as_text(fields.get("name")), text)
        case "thinking":
            proof = read_text(fields.get("signature"))
            return Thinking(read_text(fields.get("thinking")), proof, origin=NAME)
        case "redacted_thinking":
            proof = read_text(fields.get("data"))
            return Thinking("", proof, is_hidden=True, origin=NAME)
        case kind:
            raise _foreign(f"has a block of the type {kind!r:.50}, which cannot be translated")


def _foreign(problem: str) -> ForeignAnswerError:
    return ForeignAnswerError(NAME, problem)
