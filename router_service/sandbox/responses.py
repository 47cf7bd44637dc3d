"""The Responses API of the sandbox: answers, and those of them that are stored."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from router_service.core.errors import InvalidRequestError, NotFoundError
from router_service.core.messages import Json, parse_responses_request, to_chat_messages
from router_service.sandbox.answers import (
    Answer,
    encode_prompt,
    make_answer,
    read_request,
)
from router_service.sandbox.faults import Faults
from router_service.sandbox.logprobs import read_alternatives
from router_service.sandbox.playing import Reply
from router_service.sandbox.responses_wire import ResponseAnswer
from router_service.sandbox.schemas import mapping, sequence
from router_service.sandbox.usage import count_usage

MAX_STORED = 1000
_LOGPROBS = "message.output_text.logprobs"


@dataclass(frozen=True, slots=True)
class Stored:
    """A response that can be asked for again, and the chat messages that end with it."""

    response: Mapping[str, Json]
    input_items: list[Json]
    messages: list[Json]


class Responses:
    """Answers requests, and keeps the last answers that are to be stored."""

    def __init__(self, max_stored: int = MAX_STORED) -> None:
        self._max_stored = max_stored
        self._stored: OrderedDict[str, Stored] = OrderedDict()

    def answer(self, body: Mapping[str, Json], faults: Faults) -> Reply:
        """Answer as `POST /v1/responses` does; raises InvalidRequestError."""
        request = parse_responses_request(body)
        new = list(to_chat_messages(body))
        earlier = self._earlier(body)
        chat = _as_chat(body, [*earlier, *(message for _, message in new)])
        prompt = encode_prompt(chat)
        answer = make_answer(chat, read_request(chat), prompt)
        response = _response(body, answer, prompt, faults)
        if body.get("store") is not False:
            # Instructions are of one request alone, as the API reference says.
            said = [message for path, message in new if path != "instructions"]
            self._store(Stored(response.to_json(), _items(body), [*earlier, *said, _said(answer)]))
        if request.stream:
            return Reply(events=list(response.events()), error_name="error")
        return Reply(body=response.body())

    def get(self, response_id: str) -> Stored:
        """Return a stored response; raises NotFoundError."""
        stored = self._stored.get(response_id)
        if stored is None:
            raise NotFoundError("response", response_id)
        return stored

    def delete(self, response_id: str) -> None:
        """Forget a stored response; raises NotFoundError."""
        if self._stored.pop(response_id, None) is None:
            raise NotFoundError("response", response_id)

    def cancel(self, response_id: str) -> Stored:
        """Return a response that was to run in the background: here it has ended already.

        Raises InvalidRequestError for any other one, and NotFoundError.
        """
        stored = self.get(response_id)
        if stored.response["background"] is not True:
            raise InvalidRequestError("Cannot cancel a synchronous response.")
        return stored

    def _earlier(self, body: Mapping[str, Json]) -> list[Json]:
        previous = body.get("previous_response_id")
        if previous is None:
            return []
        if previous not in self._stored:
            raise InvalidRequestError(
                f"Previous response with id '{previous}' not found.",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        return self._stored[previous].messages

    def _store(self, stored: Stored) -> None:
        self._stored[stored.response["id"]] = stored
        if len(self._stored) > self._max_stored:
            self._stored.popitem(last=False)


def _response(
    body: Mapping[str, Json], answer: Answer, prompt: bytes, faults: Faults
) -> ResponseAnswer:
    effort = mapping(body.get("reasoning")).get("effort")
    asked = _LOGPROBS in sequence(body.get("include"))
    return ResponseAnswer(
        response_id=f"resp_sandbox{secrets.token_hex(12)}",
        created=int(time.time()),
        request=body,
        answer=answer,
        usage=None if faults.no_usage else count_usage(prompt, answer, effort=effort),
        thinks=isinstance(effort, str) and effort != "none",
        alternatives=read_alternatives(body, asked=asked),
    )


def _as_chat(body: Mapping[str, Json], messages: list[Json]) -> dict[str, Json]:
    """Return the chat request that says the same, but for tools that the provider would run."""
    return {
        "model": body["model"],
        "messages": messages or [{"role": "user", "content": ""}],
        "tools": [tool for tool in sequence(body.get("tools")) if _is_clients(tool)],
        "tool_choice": _tool_choice(body.get("tool_choice")),
        "parallel_tool_calls": body.get("parallel_tool_calls"),
        "response_format": _response_format(body),
    }


def _is_clients(tool: Json) -> bool:
    return mapping(tool).get("type") in ("function", "custom")


def _tool_choice(choice: Json) -> Json:
    kind = mapping(choice).get("type")
    if kind == "allowed_tools":
        return {"allowed_tools": choice}
    return choice if kind in (None, "function", "custom") else "auto"


def _response_format(body: Mapping[str, Json]) -> Json:
    form = mapping(mapping(body.get("text")).get("format"))
    return {"type": form.get("type"), "json_schema": form}


def _items(body: Mapping[str, Json]) -> list[Json]:
    """Return the items of the input with ids, as `GET .../input_items` lists them."""
    given = body.get("input")
    message = {"type": "message", "role": "user", "content": given}
    items = [message] if isinstance(given, str) else sequence(given)
    return [_item(index, mapping(item)) for index, item in enumerate(items)]


def _item(index: int, item: Mapping[str, Json]) -> Json:
    named: dict[str, Json] = {"id": f"msg_input_{index}", "type": "message", **item}
    content = item.get("content")
    parts = [{"type": "input_text", "text": content}] if isinstance(content, str) else content
    return named if "content" not in item else named | {"content": parts}


def _said(answer: Answer) -> Json:
    """Return an answer as the chat message that the next request goes on from."""
    return {"role": "assistant", "content": answer.text, "tool_calls": list(_calls(answer))}


def _calls(answer: Answer) -> Iterator[Json]:
    for call in answer.calls:
        yield {"function": {"name": call.name, "arguments": call.payload}}
