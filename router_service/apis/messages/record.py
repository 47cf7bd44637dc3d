"""Record of an answer of Messages that passes through unchanged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from router_service.apis.answers import AnswerIdentity, AnswerRecord, write_json
from router_service.apis.conversation import Json, as_dict, as_list
from router_service.apis.parts import Stop
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
        elif kind == "input_json_delta" and index in self.calls:  # else of a provider's tool
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
