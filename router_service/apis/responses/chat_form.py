"""The Responses API: requests read as equivalent chat requests.

The router was trained on chat messages, so items become messages: instructions become a system
turn, calls become a part of the preceding assistant turn, and call outputs become tool turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from router_service.apis.conversation import (
    ChatRequest,
    Conversation,
    Json,
    Reference,
    as_list,
    as_text,
    empty_array,
    read_model,
    read_stream,
    read_tools,
    read_turns,
    unwrap_tool,
    with_paths,
    wrong_type,
)
from router_service.apis.foreign import unseal_summary
from router_service.apis.references import CONTINUATION_FIELDS
from router_service.apis.responses import COMPACTIONS
from router_service.core.errors import InvalidRequestError

Message = dict[str, Json]

_SKIPPED = frozenset(
    {"reasoning", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response"}
)
"""Types of items that have no equivalent among chat messages."""


def parse_responses_request(body: Mapping[str, Json]) -> ChatRequest:
    """Read a Responses body (API reference: "Create a model response").

    Raises InvalidRequestError if `model`, `input`, `tools`, `stream`, `previous_response_id` or
    `conversation` has the wrong type, if there is nothing to answer, or if a tool's schema is
    deeper than `MAX_SCHEMA_DEPTH`.
    """
    model, stream = read_model(body), read_stream(body)
    items = body.get("input")
    may_lack_input = any(body.get(name) is not None for name in ("prompt", *CONTINUATION_FIELDS))
    if items is not None or not may_lack_input:
        if not isinstance(items, (str, list)):
            raise wrong_type("input", "a string or an array", items, missing="input" not in body)
        if not items and not may_lack_input:
            raise empty_array("input", "item")
    unread = ["prompt"] if body.get("prompt") is not None else []
    turns = tuple(read_turns(to_chat_messages(body, unread), unread))
    tools = body.get("tools")
    if isinstance(tools, list):
        tools = list(tools)
        for i, tool in enumerate(tools):
            # A built-in tool such as `web_search` has only a type, which becomes its name.
            is_unnamed = isinstance(tool, dict) and unwrap_tool(tool) is None
            kind = tool.get("type") if is_unnamed else None
            if isinstance(kind, str) and kind not in {"function", "custom"}:
                tools[i] = {"name": kind, "description": tool.get("server_description")}
    conversation = Conversation(turns, read_tools({"tools": tools}, unread), tuple(unread))
    return ChatRequest(model, stream, conversation, read_continued(body))


def read_continued(body: Mapping[str, Json]) -> Reference | None:
    """Return the response or conversation that a body continues: its id, or an object with the id.

    The case of field names is ignored, as it is by servers written in Go. Raises
    InvalidRequestError.
    """
    continued: list[Reference] = []
    for name, value in body.items():
        param = name.casefold()
        if param not in CONTINUATION_FIELDS or value is None:
            continue
        is_object = param == "conversation" and isinstance(value, dict)
        identifier = value.get("id") if is_object else value
        if identifier is not None and not isinstance(identifier, str):
            raise wrong_type(param, "an id", identifier)
        if identifier:
            continued.append(Reference(param, identifier))
    if len(continued) > 1:
        raise InvalidRequestError(
            "Only one of 'previous_response_id' and 'conversation' may be set, and only once. Send"
            " one of them.",
            param=continued[1].param,
            code="mutually_exclusive_parameters",
        )
    return continued[0] if continued else None


def to_chat_messages(
    body: Mapping[str, Json], unread: list[str] | None = None
) -> Iterator[tuple[str, Message]]:
    """Yield the chat messages of a Responses body, each with the path at which it starts.

    An item of an unknown kind becomes a message without a role. If `unread` is given and there are
    more than `MAX_MESSAGES` items, those in the middle are skipped, and their path is added to it.
    """
    instructions = body.get("instructions")
    if instructions is not None:
        yield "instructions", {"role": "system", "content": instructions}
    items = body.get("input")
    if isinstance(items, str):
        yield "input", {"role": "user", "content": items}
        return
    pending: tuple[str, Message] | None = None
    for path, item in with_paths(as_list(items), "input", unread):
        entry = item if isinstance(item, dict) else {}
        kind = as_text(entry.get("type"))
        message: Message = {}
        if kind in _SKIPPED:
            continue
        summary = unseal_summary(entry.get("encrypted_content")) if kind in COMPACTIONS else None
        if summary is not None:
            message = {"role": "user", "content": summary}
        elif kind in {"", "message"}:
            content = entry.get("content")
            message = {"role": entry.get("role"), "content": content, "tool_calls": []}
        elif kind.endswith("_call_output"):
            message = {"role": "tool", "content": entry.get("output")}
        elif kind.endswith("_call"):
            arguments = entry.get("arguments", entry.get("input"))
            call = {"name": as_text(entry.get("name")) or kind, "arguments": arguments}
            if pending is not None and pending[1].get("role") == "assistant":
                # In a chat request, calls are in the assistant message that precedes them.
                pending[1]["tool_calls"].append({"function": call})
                continue
            message = {"role": "assistant", "content": None, "tool_calls": [{"function": call}]}
        if pending is not None:
            yield pending
        pending = path, message
    if pending is not None:
        yield pending
