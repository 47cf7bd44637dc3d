"""Record of an answer of Responses that passes through unchanged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from router_service.apis.answers import AnswerIdentity, AnswerRecord
from router_service.apis.conversation import Json, as_dict
from router_service.apis.parts import Stop
from router_service.apis.surrogates import fix_surrogates
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
                self.has_other_output = self.has_other_output or bool(part.get("refusal"))
        elif kind != "reasoning":
            self.has_other_output = True


def is_beginning(event: Mapping[str, Json]) -> bool:
    """Return whether an event contains nothing of the answer."""
    return event.get("type") in _EMPTY_TYPES


def read_usage(value: Json) -> Usage | None:
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
