"""Reading of Responses requests as equivalent chat requests."""

from __future__ import annotations

from typing import Any

import pytest

from router_service.apis.conversation import (
    Conversation,
    Reference,
    Role,
    ToolCall,
    parse_chat_request,
)
from router_service.apis.responses.chat_form import parse_responses_request
from router_service.core.errors import InvalidRequestError

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
PICTURE = "data:image/png;base64,AAAA"


def read(**body: object) -> Conversation:
    """Return the conversation of a Responses body."""
    return parse_responses_request({"model": "m", **body}).conversation


CALL = {"name": "weather", "arguments": '{"city":"Oslo"}'}
FUNCTION = {"name": "weather", "description": "Of a city.", "parameters": PARAMETERS}
CUSTOM = {"name": "note", "description": "Writes."}
AS_CHAT = {
    "model": "m",
    "stream": True,
    "messages": [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is this?"},
                {"type": "image_url", "image_url": {"url": PICTURE}},
            ],
        },
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [
                {"id": "a", "type": "function", "function": CALL},
                {"id": "b", "type": "custom", "custom": {"name": "note", "input": "x"}},
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "rain"},
        {"role": "tool", "tool_call_id": "b", "content": "done"},
        {"role": "user", "content": "And tomorrow?"},
    ],
    "tools": [
        {"type": "function", "function": FUNCTION},
        {"type": "custom", "custom": CUSTOM},
    ],
}
AS_RESPONSES = {
    "model": "m",
    "stream": True,
    "instructions": "Be brief.",
    "input": [
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "What is this?"},
                {"type": "input_image", "image_url": PICTURE},
            ],
        },
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}],
        },
        {"type": "function_call", "call_id": "a", **CALL},
        {"type": "custom_tool_call", "call_id": "b", "name": "note", "input": "x"},
        {"type": "function_call_output", "call_id": "a", "output": "rain"},
        {
            "type": "custom_tool_call_output",
            "call_id": "b",
            "output": [{"type": "input_text", "text": "done"}],
        },
        {"role": "user", "content": "And tomorrow?"},
    ],
    "tools": [{"type": "function", **FUNCTION}, {"type": "custom", **CUSTOM}],
}


def test_equivalent_requests_give_equal_conversations() -> None:
    """Instructions, texts, images, parallel calls, their results and tools are read alike."""
    chat, responses = parse_chat_request(AS_CHAT), parse_responses_request(AS_RESPONSES)
    assert responses == chat
    assert responses.conversation.unread == ()


def test_built_in_tools_are_named_by_their_type() -> None:
    """A tool without a name gets its type as name, and an MCP server keeps its description."""
    tools = [
        {"type": "web_search"},
        {"type": "mcp", "server_label": "s", "server_description": "Tickets."},
        {"type": "function", "parameters": {}},
    ]
    conversation = read(input="x", tools=tools)
    assert [(tool.name, tool.description) for tool in conversation.tools] == [
        ("web_search", ""),
        ("mcp", "Tickets."),
    ]
    assert conversation.unread == ("tools[2]",)


def test_built_in_calls_are_named_by_their_type() -> None:
    """A built-in call gets its type as name, and an MCP call keeps its own name."""
    items = [{"type": "web_search_call"}, {"type": "mcp_call", "name": "find", "arguments": "{}"}]
    (turn,) = read(input=items).turns
    assert turn.role is Role.ASSISTANT
    assert turn.tool_calls == (ToolCall("web_search_call", ""), ToolCall("find", "{}"))


def test_unreadable_items_are_listed() -> None:
    """Items of unknown kinds and stored prompts are listed by their paths."""
    items = [1, {"type": "item_reference", "id": "i"}, {"role": "user", "content": "x"}]
    conversation = read(input=items, prompt={"id": "p"})
    assert conversation.unread == ("prompt", "input[0]", "input[1]")
    assert [turn.text for turn in conversation.turns] == ["x"]


@pytest.mark.parametrize(
    ("fields", "continued"),
    [
        (
            {"input": "x", "previous_response_id": "resp_1"},
            Reference("previous_response_id", "resp_1"),
        ),
        ({"input": "x", "conversation": {"id": "conv_1"}}, Reference("conversation", "conv_1")),
        ({"input": "x", "previous_response_id": None, "conversation": None}, None),
    ],
)
def test_continued_response_or_conversation_is_read(
    fields: dict[str, Any], continued: Reference | None
) -> None:
    """The id of the response or conversation that a request continues is read."""
    assert parse_responses_request({"model": "m", **fields}).continues == continued


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"input": 1}, "input", "invalid_type"),
        ({"input": ""}, "input", "empty_array"),
        ({"input": "x", "previous_response_id": 1}, "previous_response_id", "invalid_type"),
        ({"input": "x", "conversation": {"id": 1}}, "conversation", "invalid_type"),
    ],
)
def test_invalid_fields_are_named(fields: dict[str, Any], param: str, code: str) -> None:
    """A field of the wrong type, or a request without input, is refused by the field's name."""
    with pytest.raises(InvalidRequestError) as caught:
        parse_responses_request({"model": "m", **fields})
    assert (caught.value.param, caught.value.code) == (param, code)
