"""Reader of answers of Messages, whole and in events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from router_service.apis.answers import AnswerIdentity, AnswerRecord, write_json
from router_service.apis.conversation import Json, as_dict, as_list, as_text
from router_service.apis.encoding import fix_surrogates
from router_service.apis.foreign import from_input, read_text
from router_service.apis.messages import NAME
from router_service.apis.parts import AnswerPart, Stop, Text, Thinking, ToolUse
from router_service.apis.reading import AnswerReader, OpenPart
from router_service.apis.usage import Usage, read_count, read_counts

STOPS = {
    "end_turn": Stop.END,
    "stop_sequence": Stop.SEQUENCE,
    "tool_use": Stop.CALLS,
    "max_tokens": Stop.LENGTH,
    "model_context_window_exceeded": Stop.LENGTH,
    # Only Anthropic can continue a paused turn. For other APIs, the answer is cut off.
    "pause_turn": Stop.LENGTH,
    "refusal": Stop.REFUSAL,
}

_EMPTY_TYPES = ("message_start", "ping")
_THINKING_TYPES = ("thinking", "redacted_thinking")
_DELTA_TEXTS = ("text", "partial_json", "thinking")


class MessagesRecord(AnswerRecord):
    """Record of one answer."""

    last_types = ("message_stop",)

    def read(self, value: Mapping[str, Json]) -> None:
        """Read a whole answer or one event."""
        kind = value.get("type")
        if not self.has_output:
            self.has_output = not is_beginning(value)
        if kind == "content_block_delta":
            delta = value.get("delta")
            if isinstance(delta, dict):
                self._read_delta(delta, value.get("index"))
            return
        self.usage = read_usage(value, self.usage) or self.usage
        if kind == "content_block_start":
            self._read_block(value.get("content_block"), value.get("index"))
        elif kind == "message_start":
            self.identity = AnswerIdentity.of(value.get("message"))
        elif kind == "message_delta":
            delta = value.get("delta")
            if isinstance(delta, dict) and self._read_stop(delta):
                self.has_stopped = True
        elif kind in self.last_types:
            self.is_done = True
        elif kind == "message":
            self.identity = AnswerIdentity.of(value)
            self._read_stop(value)
            for place, block in enumerate(self.objects(value.get("content"))):
                self._read_block(block, place)

    def _read_stop(self, fields: Mapping[str, Json]) -> bool:
        """Read why the answer ended; return whether it says so."""
        reason = fields.get("stop_reason")
        if isinstance(reason, str):
            self.stop = STOPS.get(reason, Stop.END)
        return bool(reason)

    def _read_delta(self, delta: Mapping[str, Json], index: Json) -> None:
        for name in _DELTA_TEXTS:
            if isinstance(text := delta.get(name), str):
                self.written_characters += len(text)
        kind = delta.get("type")
        if kind == "signature_delta":
            self.note_proof(delta.get("signature"))
        elif self.is_incomplete:
            return
        elif kind == "text_delta":
            self.add_text(delta.get("text"))
        elif kind == "input_json_delta" and isinstance(index, int) and index in self.calls:
            # other deltas are of a provider's tool
            self.calls[index].arguments.write(self.count(delta.get("partial_json")))

    def text_of(self, value: Json) -> str | None:
        """Return the text that an event adds to a block of text, or None if it does more."""
        delta = value.get("delta") if isinstance(value, dict) else None
        if not isinstance(delta, dict) or value.get("type") != "content_block_delta":
            return None
        text = delta.get("text")
        is_text = delta.get("type") == "text_delta" and len(delta) == 2
        return text if is_text and isinstance(text, str) else None

    def _read_block(self, block: Json, index: Json) -> None:
        if not isinstance(block, dict):
            return
        if proof := _proof_of(block):
            self.note_proof(proof)
        kind = block.get("type")
        self.has_calls = self.has_calls or (isinstance(kind, str) and kind.endswith("tool_use"))
        if self.is_incomplete:
            return
        if kind == "text":
            self.add_text(block.get("text"))
        elif kind == "tool_use" and isinstance(index, int):
            call = self.add_call(index)
            call.id = call.id or self.count(block.get("id"))
            call.name = call.name or self.count(block.get("name"))
            try:
                call.whole = self.count(write_json(block.get("input", {})))
            except (RecursionError, TypeError):  # the latter for what no JSON can express
                self.is_incomplete = True
        elif kind not in _THINKING_TYPES:
            self.has_other_output = True


def is_beginning(event: Mapping[str, Json]) -> bool:
    """Return whether an event contains nothing of the answer."""
    return event.get("type") in _EMPTY_TYPES


def read_usage(value: Json, before: Usage | None = None) -> Usage | None:
    """Return the usage of an answer or of an event, given what earlier events have reported.

    The first event of a stream has the prompt's tokens. The counts of `message_delta` are totals,
    which replace earlier ones if they are there (API reference: "Streaming messages").
    """
    usage = value.get("usage")
    if not isinstance(usage, dict):
        usage = as_dict(value.get("message")).get("usage")
    if not isinstance(usage, dict):
        return None
    completion = read_count(usage, "output_tokens", "completion_tokens")
    if completion is None or before is None or value.get("type") != "message_delta":
        return read_counts(usage)
    uncached = read_count(usage, "input_tokens")
    cached = read_count(usage, "cache_read_input_tokens")
    written = read_count(usage, "cache_creation_input_tokens")
    uncached = before.uncached_tokens if uncached is None else uncached
    cached = before.cached_tokens if cached is None else cached
    written = before.cache_write_tokens if written is None else written
    details = usage.get("output_tokens_details")
    return Usage(
        prompt_tokens=uncached + cached + written,
        completion_tokens=completion,
        cached_tokens=cached,
        cache_write_tokens=written,
        reasoning_tokens=read_count(details, "thinking_tokens") or before.reasoning_tokens,
    )


def find_proofs(value: Mapping[str, Json]) -> Iterator[str]:
    """Yield the proofs of reasoning in a whole answer."""
    for block in as_list(value.get("content")):
        if isinstance(block, dict) and (proof := _proof_of(block)):
            yield proof


def _proof_of(block: Mapping[str, Json]) -> str:
    """Return the proof of a block of reasoning, or an empty text."""
    proof = block.get("data" if block.get("type") == "redacted_thinking" else "signature")
    return proof if isinstance(proof, str) else ""


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
