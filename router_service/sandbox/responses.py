"""The sandbox's Responses API: answers, their events, and stored responses."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from router_service.apis.conversation import Json
from router_service.apis.parts import Answer, Stop, Thinking
from router_service.apis.responses.api import RESPONSES
from router_service.apis.responses.chat_form import parse_responses_request, to_chat_messages
from router_service.core.errors import InvalidRequestError, NotFoundError
from router_service.sandbox.event_writing import write_answer
from router_service.sandbox.filling import mapping, sequence
from router_service.sandbox.replies import (
    count_usage,
    encode_prompt,
    make_answer,
    read_request,
)
from router_service.sandbox.sending import Faults, Reply

MAX_STORED = 1000

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
        has_reasoning = isinstance(effort, str) and effort != "none"
        usage = count_usage(prompt, answer, effort=effort)
        written = Answer(
            id=f"resp_sandbox{secrets.token_hex(12)}",
            model=body["model"],
            parts=(*([Thinking("")] if has_reasoning else ()), *answer.parts()),
            stop=Stop.CALLS if answer.calls else Stop.END,
            usage=None if faults.no_usage else usage.to_usage(),
        )
        adapter = _Adapter(body)
        response = adapter.adapt(orjson.loads(write_answer(RESPONSES, written, stream=False).body))
        if body.get("store") is not False:
            # Instructions apply to one request only (OpenAI's API reference).
            kept = [message for path, message in new if path != "instructions"]
            calls = [
                {"function": {"name": call.name, "arguments": call.payload}}
                for call in answer.calls
            ]
            last = {"role": "assistant", "content": answer.text, "tool_calls": calls}
            self._stored[written.id] = StoredResponse(
                response, _input_items(body), [*earlier, *kept, last]
            )
            if len(self._stored) > self._max_stored:
                self._stored.popitem(last=False)
        if not request.stream:
            return Reply(body=orjson.dumps(response), api=RESPONSES)
        reply = write_answer(RESPONSES, written, stream=True)
        return Reply(
            events=[adapter.adapt_event(each) for each in reply.events or ()], api=RESPONSES
        )

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
class _Adapter:
    """Adds what the sandbox's responses have, and a translated answer has not."""

    request: Mapping[str, Json]
    """The request, whose fields the response repeats."""

    def adapt_event(self, written: bytes) -> bytes:
        """Return an event of a stream with what its objects lack."""
        head, _, data = written.partition(b"data: ")
        return head + b"data: " + orjson.dumps(self.adapt(orjson.loads(data))) + b"\n\n"

    def adapt(self, value: dict[str, Json]) -> dict[str, Json]:
        """Return an object with the request's fields."""
        for name, inner in value.items():
            if isinstance(inner, dict):
                value[name] = self.adapt(inner)
            elif isinstance(inner, list):
                value[name] = [
                    self.adapt(each) if isinstance(each, dict) else each for each in inner
                ]
        if value.get("type") == "reasoning":  # it is empty, so it has no proof
            value = {name: value[name] for name in ("id", "type", "summary")}
        if value.get("object") == "response":
            given = {name: self.request.get(name) for name in _REPEATED}
            value |= {name: _REPEATED[name] if v is None else v for name, v in given.items()}
        return value
