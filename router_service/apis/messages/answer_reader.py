"""Reader of answers of Messages, whole and in events."""

from __future__ import annotations

from dataclasses import dataclass, replace

from router_service.apis.conversation import Json, as_dict, as_text
from router_service.apis.foreign import from_input, read_text
from router_service.apis.messages import NAME
from router_service.apis.messages.record import STOPS, read_usage
from router_service.apis.parts import AnswerPart, Stop, Text, Thinking, ToolUse
from router_service.apis.reading import AnswerReader, OpenPart
from router_service.apis.surrogates import fix_surrogates

DELTAS = {
    Text: ("text_delta", "text"),
    ToolUse: ("input_json_delta", "partial_json"),
    Thinking: ("thinking_delta", "thinking"),
}
"""Types of the deltas of each part, and the field that has their text."""


@dataclass(slots=True)
class _Block:
    part: AnswerPart
    opened: OpenPart | None = None
    """A text begins with its first delta, because Anthropic rejects messages with empty texts."""


class MessagesReader(AnswerReader):
    """Reader of one answer."""

    api = NAME

    def __init__(self) -> None:
        super().__init__()
        self._blocks: dict[int, _Block] = {}
        """The blocks that have not ended."""
        self._next_block = 0
        self._explanation = ""

    def read_whole(self, value: Json) -> None:
        """Read a whole answer."""
        if not isinstance(value, dict) or value.get("type") != "message":
            raise self.foreign("is not a message")
        content = value.get("content")
        if not isinstance(content, list):
            raise self.foreign("has no list of content")
        self.begin(value)
        for index, block in enumerate(content):
            self._start_block(index, block)
            self._end_block(index)
        self._read_stop(value)
        self.usage = read_usage(value)

    def read(self, event: Json) -> None:
        """Read one event."""
        if not isinstance(event, dict):
            raise self.foreign("has an event that is not an object")
        match event.get("type"):
            case "content_block_delta":
                self._read_delta(event)
            case "content_block_start":
                self._start_block(event.get("index"), event.get("content_block"))
            case "content_block_stop":
                self._end_block(event.get("index"))
            case "message_start":
                message = event.get("message")
                if self._has_started or not isinstance(message, dict):
                    raise self.foreign("has an invalid start")
                self.usage = read_usage(event)
                self.begin(message, self.usage)
            case "message_delta":
                self._read_stop(as_dict(event.get("delta")))
                self.usage = read_usage(event, self.usage) or self.usage
            case "message_stop":
                self.finish()
            case "ping":
                pass
            case kind:
                # Anthropic adds types of events, which clients must ignore ("Streaming", other
                # events).
                if not isinstance(kind, str) or kind == "error" or not self._has_started:
                    raise self.foreign(f"has an unexpected event of the type {kind!r:.50}")

    def end_parts(self) -> None:
        """End the blocks, and add why the model refused to answer."""
        for index in list(self._blocks):
            self._end_block(index)
        if self._explanation:
            refusal = self.start(Text("", is_refusal=True))
            self.grow(refusal, self._explanation)
            self.close(refusal)

    def _start_block(self, index: Json, content: Json) -> None:
        if type(index) is not int or index < self._next_block or not self._has_started:
            raise self.foreign("starts a block at an invalid place")
        # The input of a call is empty here, and deltas follow. A server that sends no deltas may
        # have put the whole input here.
        part = self._read_block(content)
        self._blocks[index] = block = _Block(part)
        self._next_block = index + 1
        if isinstance(part, ToolUse):
            block.opened = self.start(replace(part, arguments=""))
            return
        if isinstance(part, Thinking):
            block.opened = self.start(replace(part, text=""))
        self._grow(block, part.text)

    def _read_delta(self, event: dict[str, Json]) -> None:
        index, delta = event.get("index"), event.get("delta")
        block = self._blocks.get(index) if type(index) is int else None
        if block is None or not isinstance(delta, dict):
            raise self.foreign("has a delta without a block")
        kind = delta.get("type")
        expected, name = DELTAS[type(block.part)]
        text = delta.get(name)
        if kind == expected and isinstance(text, str):
            self._grow(block, text)
        elif kind == "signature_delta" and block.opened and isinstance(block.part, Thinking):
            self.prove(block.opened, delta.get("signature"))
        elif kind != "citations_delta":  # the text is complete without them
            raise self.foreign(f"has an unexpected delta of the type {kind!r:.50}")

    def _grow(self, block: _Block, text: str) -> None:
        if text:
            block.opened = block.opened or self.start(Text(""))
            self.grow(block.opened, text)

    def _end_block(self, index: Json) -> None:
        block = self._blocks.pop(index, None) if type(index) is int else None
        if block is None:
            raise self.foreign("ends a block that has not started")
        if block.opened is not None:
            part = block.part
            self.close(block.opened, part.arguments if isinstance(part, ToolUse) else "")

    def _read_stop(self, fields: dict[str, Json]) -> None:
        reason, stop_text = fields.get("stop_reason"), fields.get("stop_sequence")
        details = fields.get("stop_details")
        if isinstance(reason, str) and reason:
            self._stop = STOPS.get(reason, Stop.END)
        if isinstance(stop_text, str):
            self._stop_text = fix_surrogates(stop_text)
        if isinstance(details, dict) and self._stop is Stop.REFUSAL:
            self._explanation = read_text(details.get("explanation"))

    def _read_block(self, block: Json) -> AnswerPart:
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
                problem = f"has a block of the type {kind!r:.50}, which cannot be translated"
                raise self.foreign(problem)
