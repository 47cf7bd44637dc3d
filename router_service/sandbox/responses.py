"""The sandbox's Responses API: answers, their events, and stored responses."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from router_service.apis.conversation import Json
from router_service.apis.responses.api import RESPONSES
from router_service.apis.responses.chat_form import parse_responses_request, to_chat_messages
from router_service.core.errors import InvalidRequestError, NotFoundError
from router_service.sandbox.answers import (
    Kind,
    SandboxAnswer,
    SandboxCall,
    SandboxUsage,
    count_usage,
    encode_prompt,
    fragments,
    logprobs_of,
    make_answer,
    read_alternatives,
    read_request,
)
from router_service.sandbox.filling import mapping, sequence
from router_service.sandbox.sending import Faults, Reply, event

MAX_STORED = 1000

Event = dict[str, Json]

_LOGPROBS = "message.output_text.logprobs"
_REPEATED: Mapping[str, Json] = {
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
"""Fields of a request that its response repeats, with their defaults."""

_EMPTY: Mapping[str, Json] = {"content": [], "arguments": "", "input": ""}
"""Fields of an item that are empty when the item starts."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response that can be retrieved, and the chat messages of its conversation."""

    response: Mapping[str, Json]
    input_items: list[Json]
    messages: list[Json]


class Responses:
    """The sandbox's Responses API. It stores the latest `max_stored` responses."""

    def __init__(self, max_stored: int = MAX_STORED) -> None:
        self._max_stored = max_stored
        self._stored: OrderedDict[str, StoredResponse] = OrderedDict()

    def answer(self, body: Mapping[str, Json], faults: Faults) -> Reply:
        """Answer `POST /v1/responses`; raise InvalidRequestError."""
        request = parse_responses_request(body)
        new = list(to_chat_messages(body))
        earlier: list[Json] = []
        previous = body.get("previous_response_id")
        if previous is not None:
            if previous not in self._stored:
                raise InvalidRequestError(
                    f"Previous response with id '{previous}' not found.",
                    param="previous_response_id",
                    code="previous_response_not_found",
                )
            earlier = self._stored[previous].messages
        chat = _to_chat_request(body, [*earlier, *(message for _, message in new)])
        prompt = encode_prompt(chat)
        answer = make_answer(chat, read_request(chat), prompt)
        effort = mapping(body.get("reasoning")).get("effort")
        wants_logprobs = _LOGPROBS in sequence(body.get("include"))
        response = ResponseAnswer(
            response_id=f"resp_sandbox{secrets.token_hex(12)}",
            created=int(time.time()),
            request=body,
            answer=answer,
            usage=None if faults.no_usage else count_usage(prompt, answer, effort=effort),
            has_reasoning=isinstance(effort, str) and effort != "none",
            alternatives=read_alternatives(body, wants_logprobs=wants_logprobs),
        )
        if body.get("store") is not False:
            # Instructions apply to one request only (OpenAI's API reference).
            kept = [message for path, message in new if path != "instructions"]
            calls = [
                {"function": {"name": call.name, "arguments": call.payload}}
                for call in answer.calls
            ]
            last = {"role": "assistant", "content": answer.text, "tool_calls": calls}
            self._stored[response.response_id] = StoredResponse(
                response.to_json(), _input_items(body), [*earlier, *kept, last]
            )
            if len(self._stored) > self._max_stored:
                self._stored.popitem(last=False)
        if request.stream:
            return Reply(events=list(response.events()), api=RESPONSES)
        return Reply(body=orjson.dumps(response.to_json()), api=RESPONSES)

    def get(self, response_id: str) -> StoredResponse:
        """Return a stored response; raise NotFoundError."""
        stored = self._stored.get(response_id)
        if stored is None:
            raise NotFoundError("response", response_id)
        return stored

    def delete(self, response_id: str) -> None:
        """Delete a stored response; raise NotFoundError."""
        if self._stored.pop(response_id, None) is None:
            raise NotFoundError("response", response_id)

    def cancel(self, response_id: str) -> StoredResponse:
        """Return a background response unchanged, because it has always finished already.

        Raise InvalidRequestError if it is not a background response, and NotFoundError.
        """
        stored = self.get(response_id)
        if stored.response["background"] is not True:
            raise InvalidRequestError("Cannot cancel a synchronous response.")
        return stored


def _to_chat_request(body: Mapping[str, Json], messages: list[Json]) -> dict[str, Json]:
    """Return the equivalent chat request, without tools that the provider would run itself."""
    choice = body.get("tool_choice")
    match mapping(choice).get("type"):
        case "allowed_tools":
            choice = {"allowed_tools": choice}
        case None | "function" | "custom":
            pass
        case _:
            choice = "auto"
    form = mapping(mapping(body.get("text")).get("format"))
    return {
        "model": body["model"],
        "messages": messages or [{"role": "user", "content": ""}],
        "tools": [
            tool
            for tool in sequence(body.get("tools"))
            if mapping(tool).get("type") in ("function", "custom")
        ],
        "tool_choice": choice,
        "parallel_tool_calls": body.get("parallel_tool_calls"),
        "response_format": {"type": form.get("type"), "json_schema": form},
    }


def _input_items(body: Mapping[str, Json]) -> list[Json]:
    """Return the items of the input with ids, as `GET .../input_items` lists them."""
    given = body.get("input")
    message = {"type": "message", "role": "user", "content": given}
    items: list[Json] = []
    for index, entry in enumerate([message] if isinstance(given, str) else sequence(given)):
        item: dict[str, Json] = {"id": f"msg_input_{index}", "type": "message", **mapping(entry)}
        if isinstance(item.get("content"), str):
            item["content"] = [{"type": "input_text", "text": item["content"]}]
        items.append(item)
    return items


@dataclass(frozen=True, slots=True)
class ResponseAnswer:
    """The contents of a response; `created` is in Unix seconds."""

    response_id: str
    created: int
    request: Mapping[str, Json]
    answer: SandboxAnswer
    usage: SandboxUsage | None
    has_reasoning: bool = False
    """Whether an empty reasoning item comes before the answer."""
    alternatives: int | None = None
    """Number of alternatives for each token, or None for no log probabilities."""

    def to_json(self) -> dict[str, Json]:
        """Return the completed response."""
        usage = None if self.usage is None else self.usage.to_responses_json()
        return self._response("completed", [item for item, _ in self._items()], usage)

    def events(self) -> Iterator[bytes]:
        """Yield the events of a stream; unlike Chat Completions, it does not end with `[DONE]`."""
        for number, each in enumerate(self._events()):
            name: str = each["type"]
            yield event({**each, "sequence_number": number}, name)

    def _events(self) -> Iterator[Event]:
        started = self._response("in_progress", [], None)
        yield {"type": "response.created", "response": started}
        yield {"type": "response.in_progress", "response": started}
        for index, (item, call) in enumerate(self._items()):
            place = {"output_index": index}
            empty = {name: _EMPTY.get(name, value) for name, value in item.items()}
            empty |= {"status": "in_progress"} if "status" in item else {}
            yield {"type": "response.output_item.added", **place, "item": empty}
            place["item_id"] = item["id"]
            if call is not None:
                kind, field = "response.function_call_arguments", "arguments"
                if call.kind is Kind.CUSTOM:
                    kind, field = "response.custom_tool_call_input", "input"
                for fragment in fragments(call.payload):
                    yield {"type": f"{kind}.delta", **place, "delta": fragment}
                yield {"type": f"{kind}.done", **place, field: call.payload}
            elif item["type"] == "message":
                place["content_index"] = 0
                part = item["content"][0]
                started_part = {**part, "text": "", "logprobs": []}
                yield {"type": "response.content_part.added", **place, "part": started_part}
                for text in fragments(part["text"]):
                    added = {"delta": text, "logprobs": self._logprobs(text)}
                    yield {"type": "response.output_text.delta", **place, **added}
                done = {"text": part["text"], "logprobs": part["logprobs"]}
                yield {"type": "response.output_text.done", **place, **done}
                yield {"type": "response.content_part.done", **place, "part": part}
            yield {"type": "response.output_item.done", "output_index": index, "item": item}
        yield {"type": "response.completed", "response": self.to_json()}

    def _items(self) -> Iterator[tuple[dict[str, Any], SandboxCall | None]]:
        """Yield the output items, each with its call, or with None if it is not a call."""
        suffix = self.response_id.removeprefix("resp_")
        if self.has_reasoning:
            yield {"id": f"rs_{suffix}", "type": "reasoning", "summary": []}, None
        for call in self.answer.calls:
            call_suffix = f"{call.call_id.removeprefix('call_')}_{suffix}"
            named = {"status": "completed", "call_id": call.call_id, "name": call.name}
            if call.kind is Kind.CUSTOM:
                head = {"id": f"ctc_{call_suffix}", "type": "custom_tool_call"}
                yield {**head, **named, "input": call.payload}, call
            else:
                head = {"id": f"fc_{call_suffix}", "type": "function_call"}
                yield {**head, **named, "arguments": call.payload}, call
        if not self.answer.calls:
            text = self.answer.text or ""
            part = {
                "type": "output_text",
                "text": text,
                "annotations": [],
                "logprobs": self._logprobs(*fragments(text)),
            }
            message = {
                "id": f"msg_{suffix}",
                "type": "message",
                "status": "completed",
                "role": "assistant",
                "content": [part],
            }
            yield message, None

    def _logprobs(self, *tokens: str) -> list[Json]:
        return [] if self.alternatives is None else logprobs_of(tokens, self.alternatives)

    def _response(self, status: str, output: list[Json], usage: Json) -> dict[str, Json]:
        given = {name: self.request.get(name) for name in _REPEATED}
        return {
            "id": self.response_id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self.request["model"],
            "output": output,
            **{name: _REPEATED[name] if value is None else value for name, value in given.items()},
            "usage": usage,
        }
