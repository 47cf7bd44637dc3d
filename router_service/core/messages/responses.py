"""Requests of the Responses API, read as the chat requests that say the same.

The router learned from chat messages, so items become messages: instructions a system turn, calls
a part of the assistant's turn before them, and their outputs tool turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from router_service.core.errors import InvalidRequestError
from router_service.core.messages.body import (
    Json,
    items_of,
    read_model,
    read_stream,
    text_of,
    wrong_type,
)
from router_service.core.messages.references import CONTINUED
from router_service.core.messages.tools import inner_tool, read_tools
from router_service.core.messages.turns import numbered, read_turns
from router_service.core.messages.values import ChatRequest, Conversation, Reference

Message = dict[str, Json]

_SILENT = frozenset(
    {"reasoning", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response"}
)
"""Items that are said by nobody."""


def parse_responses_request(body: Mapping[str, Json]) -> ChatRequest:
    """Read a Responses body (API reference: "Create a model response").

    Raises InvalidRequestError where `model`, `input`, `tools`, `stream`, `previous_response_id` or
    `conversation` is of the wrong type, where there is nothing to answer, or where a tool's schema
    is deeper than `MAX_SCHEMA_DEPTH`.
    """
    return ChatRequest(
        model=read_model(body),
        stream=read_stream(body),
        conversation=_conversation(body),
        continues=_continues(body),
    )


def messages_of(
    body: Mapping[str, Json], unread: list[str] | None = None
) -> Iterator[tuple[str, Message]]:
    """Yield the chat messages of a Responses body, each with the path where it starts.

    An item of an unknown kind is a message without a role. With a list for what is `unread`, items
    beyond `MAX_MESSAGES` are noted there instead.
    """
    instructions = body.get("instructions")
    if instructions is not None:
        yield "instructions", {"role": "system", "content": instructions}
    given = body.get("input")
    if isinstance(given, str):
        yield "input", {"role": "user", "content": given}
    else:
        yield from _joined(_read_items(numbered(items_of(given), "input", unread)))


def _conversation(body: Mapping[str, Json]) -> Conversation:
    _check_input(body)
    unread = ["prompt"] if body.get("prompt") is not None else []
    turns = tuple(read_turns(messages_of(body, unread), unread))
    tools = read_tools(_with_named_tools(body), unread)
    return Conversation(turns=turns, tools=tools, unread=tuple(unread))


def _check_input(body: Mapping[str, Json]) -> None:
    given = body.get("input")
    if given is None and any(body.get(name) is not None for name in _INSTEAD_OF_INPUT):
        return
    if not isinstance(given, str | list):
        raise wrong_type("input", "a string or an array", given, missing="input" not in body)
    if not given and not any(body.get(name) is not None for name in _INSTEAD_OF_INPUT):
        raise InvalidRequestError(
            "'input' is empty. Send at least one item.", param="input", code="empty_array"
        )


_INSTEAD_OF_INPUT = ("prompt", "previous_response_id", "conversation")


def _continues(body: Mapping[str, Json]) -> Reference | None:
    """Return what a request continues: a response, or a conversation (`{"id"}` or its id).

    Servers written in Go ignore the case of names, so that any spelling counts. Raises
    InvalidRequestError if there is more than one.
    """
    found = []
    for name, value in body.items():
        param = name.casefold()
        if param not in CONTINUED or value is None:
            continue
        reference = (
            value.get("id") if param == "conversation" and isinstance(value, dict) else value
        )
        if reference is not None and not isinstance(reference, str):
            raise wrong_type(param, "an id", reference)
        if reference:
            found.append(Reference(param, reference))
    if len(found) > 1:
        raise InvalidRequestError(
            "'previous_response_id' and 'conversation' cannot be used together, nor twice. Send"
            " one of them.",
            param=found[1].param,
            code="mutually_exclusive_parameters",
        )
    return found[0] if found else None


def _read_items(items: Iterable[tuple[str, Json]]) -> Iterator[tuple[str, Message]]:
    for path, item in items:
        entry = item if isinstance(item, dict) else {}
        if text_of(entry.get("type")) not in _SILENT:
            yield path, _message(entry)


def _message(item: Mapping[str, Json]) -> Message:
    kind = text_of(item.get("type"))
    if kind in {"", "message"}:
        return {"role": item.get("role"), "content": item.get("content"), "tool_calls": []}
    if kind.endswith("_call_output"):
        return {"role": "tool", "content": item.get("output")}
    if kind.endswith("_call"):
        arguments = item.get("arguments", item.get("input"))
        call = {"name": text_of(item.get("name")) or kind, "arguments": arguments}
        return {"role": "assistant", "content": None, "tool_calls": [{"function": call}]}
    return {}


def _joined(messages: Iterable[tuple[str, Message]]) -> Iterator[tuple[str, Message]]:
    """Add calls to the assistant's message right before them, as a chat request has them."""
    held: tuple[str, Message] | None = None
    for path, message in messages:
        if held is not None and _is_call(message) and held[1].get("role") == "assistant":
            held[1]["tool_calls"] += message["tool_calls"]
            continue
        if held is not None:
            yield held
        held = path, message
    if held is not None:
        yield held


def _is_call(message: Message) -> bool:
    return bool(message.get("tool_calls"))


def _with_named_tools(body: Mapping[str, Json]) -> Mapping[str, Json]:
    """Return the tools with names: a built-in one (`web_search`) has a type alone."""
    tools = body.get("tools")
    if not isinstance(tools, list):
        return {"tools": tools}
    return {"tools": [_named(tool) for tool in tools]}


def _named(tool: Json) -> Json:
    if inner_tool(tool) is not None or not isinstance(tool, dict):
        return tool
    if not isinstance(tool.get("type"), str) or tool["type"] in {"function", "custom"}:
        return tool
    return {"name": tool["type"], "description": tool.get("server_description")}
