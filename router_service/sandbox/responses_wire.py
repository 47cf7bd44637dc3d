"""An answer -> the bytes of OpenAI's Responses API, whole or as its sequence of events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from router_service.core.messages import Json
from router_service.sandbox.answers import Answer, Call, Kind
from router_service.sandbox.chat_wire import fragments
from router_service.sandbox.events import event
from router_service.sandbox.logprobs import logprobs_of
from router_service.sandbox.usage import Usage

Event = dict[str, Json]

_ECHOED: Mapping[str, Json] = {
    "background": False,
    "conversation": None,
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
"""Fields of a request that its response repeats, with what they are where it has none."""


@dataclass(frozen=True, slots=True)
class ResponseAnswer:
    """Everything that the bytes of a response depend on; `created` is in Unix seconds."""

    response_id: str
    created: int
    request: Mapping[str, Json]
    answer: Answer
    usage: Usage | None
    thinks: bool = False
    """Whether a reasoning item, whose thoughts are not told, comes before the answer."""
    alternatives: int | None = None
    """How many alternatives of each token to tell; None tells no log probabilities."""

    def to_json(self) -> dict[str, Json]:
        """Return the completed response."""
        usage = None if self.usage is None else self.usage.to_responses_json()
        return self._response("completed", [item for item, _ in self._items()], usage)

    def body(self) -> bytes:
        """Return the completed response as JSON."""
        return orjson.dumps(self.to_json())

    def events(self) -> Iterator[bytes]:
        """Yield the events of a stream; there is no `[DONE]` in this API."""
        for number, each in enumerate(self._events()):
            name: str = each["type"]
            yield event({**each, "sequence_number": number}, name)

    def _events(self) -> Iterator[Event]:
        begun = self._response("in_progress", [], None)
        yield {"type": "response.created", "response": begun}
        yield {"type": "response.in_progress", "response": begun}
        for index, (item, call) in enumerate(self._items()):
            place = {"output_index": index}
            yield {"type": "response.output_item.added", **place, "item": _begun(item)}
            place["item_id"] = item["id"]
            if call is not None:
                yield from _call_events(call, place)
            elif item["type"] == "message":
                yield from self._text_events(item["content"][0], place)
            yield {"type": "response.output_item.done", "output_index": index, "item": item}
        yield {"type": "response.completed", "response": self.to_json()}

    def _items(self) -> Iterator[tuple[dict[str, Any], Call | None]]:
        """Yield the output items, and with each call's the call."""
        suffix = self.response_id.removeprefix("resp_")
        if self.thinks:
            yield {"id": f"rs_{suffix}", "type": "reasoning", "summary": []}, None
        for call in self.answer.calls:
            yield _call_item(call, f"{call.call_id.removeprefix('call_')}_{suffix}"), call
        if not self.answer.calls:
            yield self._message(f"msg_{suffix}"), None

    def _message(self, item_id: str) -> dict[str, Any]:
        text = self.answer.text or ""
        part = {
            "type": "output_text",
            "text": text,
            "annotations": [],
            "logprobs": self._logprobs(*fragments(text)),
        }
        return {
            "id": item_id,
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [part],
        }

    def _text_events(self, part: dict[str, Any], item: Event) -> Iterator[Event]:
        place = {**item, "content_index": 0}
        empty = {**part, "text": "", "logprobs": []}
        yield {"type": "response.content_part.added", **place, "part": empty}
        for text in fragments(part["text"]):
            added = {"delta": text, "logprobs": self._logprobs(text)}
            yield {"type": "response.output_text.delta", **place, **added}
        done = {"text": part["text"], "logprobs": part["logprobs"]}
        yield {"type": "response.output_text.done", **place, **done}
        yield {"type": "response.content_part.done", **place, "part": part}

    def _logprobs(self, *tokens: str) -> list[Json]:
        return [] if self.alternatives is None else logprobs_of(tokens, self.alternatives)

    def _response(self, status: str, output: list[Json], usage: Json) -> dict[str, Json]:
        given = {name: self.request.get(name) for name in _ECHOED}
        echoed = {name: _ECHOED[name] if v is None else v for name, v in given.items()}
        return {
            "id": self.response_id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self.request["model"],
            "output": output,
            **echoed,
            "usage": usage,
        }


def _call_events(call: Call, place: Event) -> Iterator[Event]:
    """Yield a call's payload in fragments, and then as a whole."""
    kind = "response.function_call_arguments"
    field = "arguments"
    if call.kind is Kind.CUSTOM:
        kind, field = "response.custom_tool_call_input", "input"
    for fragment in fragments(call.payload):
        yield {"type": f"{kind}.delta", **place, "delta": fragment}
    yield {"type": f"{kind}.done", **place, field: call.payload}


def _call_item(call: Call, suffix: str) -> dict[str, Any]:
    named = {"status": "completed", "call_id": call.call_id, "name": call.name}
    if call.kind is Kind.CUSTOM:
        return {"id": f"ctc_{suffix}", "type": "custom_tool_call", **named, "input": call.payload}
    return {"id": f"fc_{suffix}", "type": "function_call", **named, "arguments": call.payload}


_EMPTY: Mapping[str, Json] = {"content": [], "arguments": "", "input": ""}


def _begun(item: Mapping[str, Json]) -> dict[str, Json]:
    """Return an item as it is before anything was said."""
    begun = {name: _EMPTY.get(name, value) for name, value in item.items()}
    return begun | ({"status": "in_progress"} if "status" in item else {})
