"""Anthropic's Messages API: requests read as equivalent chat requests.

The router was trained on chat messages. So everything that reads a request, such as the router, the
verifier and the decision log, reads the chat request that `to_chat_body` returns. It is never sent:
the translation for upstreams is in `dialects`, and does not leave anything out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import orjson

from router_service.apis.conversation import (
    ChatRequest,
    Json,
    as_text,
    parse_chat_request,
    wrong_type,
)

_CALL_TYPES = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})
_UNREAD_TYPES = frozenset({"thinking", "redacted_thinking"})
"""Blocks of a model's reasoning, which have no equivalent among chat messages."""


def parse_messages_request(chat_body: Mapping[str, Json]) -> ChatRequest:
    """Read a Messages body that `to_chat_body` has converted (API reference: "Create a Message").

    Raises the errors of `parse_chat_request`, and InvalidRequestError if `max_tokens`, which this
    API requires, is missing or not a count.
    """
    limit = chat_body.get("max_tokens")
    if type(limit) is not int or limit < 0:  # `type`, because true is an int too
        is_missing = "max_tokens" not in chat_body
        raise wrong_type("max_tokens", "a whole number of tokens", limit, missing=is_missing)
    return parse_chat_request(chat_body)


def to_chat_body(body: Mapping[str, Json]) -> dict[str, Json]:
    """Return the chat request that asks a model the same as a Messages body.

    Blocks of reasoning are left out. Images and documents stay as they are. Raises
    InvalidRequestError if `system`, `messages` or `tools` has the wrong type.
    """
    messages = body.get("messages")
    if not isinstance(messages, list):
        raise wrong_type("messages", "an array", messages, missing="messages" not in body)
    system, chat = body.get("system"), dict(body)
    if not isinstance(system, (str, list, type(None))):
        raise wrong_type("system", "a string or an array", system)
    chat["messages"] = [
        *([{"role": "system", "content": system}] if system else ()),
        *(turn for message in messages for turn in _chat_messages(message)),
    ]
    tools = body.get("tools")
    if tools is not None:
        if not isinstance(tools, list):
            raise wrong_type("tools", "an array", tools)
        chat["tools"] = [_chat_tool(tool) for tool in tools]
    choice = body.get("tool_choice")
    if isinstance(choice, dict):
        kind = choice.get("type")
        forced = {"type": "function", "function": {"name": choice.get("name")}}
        chat["tool_choice"] = "required" if kind == "any" else forced if kind == "tool" else kind
        is_single = choice.get("disable_parallel_tool_use")
        if isinstance(is_single, bool):
            chat["parallel_tool_calls"] = not is_single
    config = body.get("output_config")
    form = config.get("format") if isinstance(config, dict) else body.get("output_format")
    if isinstance(form, dict) and form.get("type") == "json_schema":
        chat["response_format"] = {"type": "json_schema", "json_schema": form}
    return chat


def _chat_messages(message: Json) -> Iterator[dict[str, Any]]:
    """Yield a message's chat messages: tool results become messages of their own."""
    entry = message if isinstance(message, dict) else {}
    role, blocks = entry.get("role"), entry.get("content")
    if not isinstance(blocks, list):
        yield {"role": role, "content": blocks}
        return
    parts: list[Json] = []
    calls: list[Json] = []
    has_results = False
    for block in blocks:
        fields = block if isinstance(block, dict) else {}
        kind = as_text(fields.get("type"))
        if kind == "tool_result":
            if parts:
                yield {"role": role, "content": parts}
            parts, has_results = [], True
            content = fields.get("content")
            yield {"role": "tool", "tool_call_id": fields.get("tool_use_id"), "content": content}
        elif kind in _CALL_TYPES:
            arguments = ""
            with suppress(orjson.JSONEncodeError):  # more than 254 levels
                arguments = orjson.dumps(fields.get("input", {})).decode()
            function = {"name": fields.get("name"), "arguments": arguments}
            calls.append({"id": fields.get("id"), "type": "function", "function": function})
        elif not (kind in _UNREAD_TYPES or kind.endswith("_tool_result")):
            parts.append(block)
    if parts or calls or not has_results:
        yield {"role": role, "content": parts, **({"tool_calls": calls} if calls else {})}


def _chat_tool(tool: Json) -> Json:
    """Return a tool of the client's as a function; other tools keep their type and their name."""
    if not isinstance(tool, dict):
        return tool
    if tool.get("type") not in (None, "custom"):  # no set, because a type may be unhashable
        name = tool.get("name", tool.get("mcp_server_name", tool["type"]))
        return {"type": tool["type"], "name": name, "description": as_text(tool.get("description"))}
    names = {"name": "name", "description": "description", "input_schema": "parameters"}
    function = {ours: tool[theirs] for theirs, ours in names.items() if theirs in tool}
    return {"type": "function", "function": function}
