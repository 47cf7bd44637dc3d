"""Reading of requests for the router: every shape of the three APIs, and clear errors."""

from __future__ import annotations

from typing import Any

import pytest

from router_service.apis.conversation import (
    MAX_MESSAGES,
    MAX_PARTS,
    MAX_SCHEMA_DEPTH,
    MAX_TOOL_CHARACTERS,
    MAX_TOOL_VALUES,
    MAX_TOOLS,
    ChatRequest,
    Conversation,
    ToolCall,
    is_confirmation,
)
from router_service.core.errors import InvalidRequestError
from tests import apis
from tests.apis import Api

CHAT, RESPONSES, MESSAGES = apis.CHAT, apis.RESPONSES, apis.MESSAGES
USER = {"role": "user", "content": "hi"}
INPUT: dict[str, Any] = {"input": "x"}


def parse(api: Api, **fields: object) -> ChatRequest:
    """Return what the router reads of a body with these fields."""
    conversation = INPUT if api is RESPONSES else {"messages": [USER]}
    return api.parse(api.to_chat({"model": "m", "max_tokens": 9, **conversation, **fields}))


def read(*messages: object, **fields: object) -> Conversation:
    """Return the conversation of a chat request with these messages."""
    return parse(CHAT, messages=list(messages), **fields).conversation


def function(name: str, **schema: object) -> dict[str, Any]:
    """Return a function tool with this parameter schema."""
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def nested(levels: int) -> dict[str, Any]:
    """Return a schema with this many nested objects."""
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"inner": schema}}
    return schema


PICTURE = "data:image/png;base64,AAAA"
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "weather", "description": "Of a city."}
CALL = {"name": "weather", "arguments": '{"city":"Oslo"}'}
SHOWN = [
    {"type": "text", "text": "What is this?"},
    {"type": "image_url", "image_url": {"url": PICTURE}},
]
AS_CHAT: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": SHOWN},
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [
                {"id": "a", "type": "function", "function": CALL},
                {"id": "b", "type": "function", "function": CALL},
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "rain"},
        {"role": "tool", "tool_call_id": "b", "content": [{"type": "text", "text": "sun"}]},
        {"role": "user", "content": "And tomorrow?"},
    ],
    "tools": [{"type": "function", "function": WEATHER | {"parameters": PARAMETERS}}],
}
SUN = {"type": "function_call_output", "call_id": "b"}
AS_RESPONSES: dict[str, Any] = {
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
        {"type": "function_call", "call_id": "b", **CALL},
        {"type": "function_call_output", "call_id": "a", "output": "rain"},
        SUN | {"output": [{"type": "input_text", "text": "sun"}]},
        {"role": "user", "content": "And tomorrow?"},
    ],
    "tools": [{"type": "function", **WEATHER, "parameters": PARAMETERS}],
}
USED = {"type": "tool_use", "name": "weather", "input": {"city": "Oslo"}}
RETURNED = {"type": "tool_result", "content": "rain"}
AS_MESSAGES: dict[str, Any] = {
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is this?"},
                {"type": "image", "source": {"type": "url", "url": PICTURE}},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                {"type": "text", "text": "Let me see."},
                USED | {"id": "a"},
                USED | {"id": "b"},
            ],
        },
        {
            "role": "user",
            "content": [
                RETURNED | {"tool_use_id": "a"},
                RETURNED | {"tool_use_id": "b", "content": [{"type": "text", "text": "sun"}]},
                {"type": "text", "text": "And tomorrow?"},
            ],
        },
    ],
    "tools": [WEATHER | {"type": "custom", "input_schema": PARAMETERS}],
}


@pytest.mark.parametrize(("api", "body"), [(RESPONSES, AS_RESPONSES), (MESSAGES, AS_MESSAGES)])
def test_equivalent_requests_give_equal_conversations(api: Api, body: dict[str, Any]) -> None:
    """Instructions, texts, images, parallel calls, their results and tools are read alike."""
    chat = parse(CHAT, **AS_CHAT, stream=True)
    assert parse(api, **body, stream=True) == chat
    assert chat.conversation.unread == ()
    shown = chat.conversation.turns[1]
    assert (shown.text, shown.attachments) == ("What is this?", 1)


def test_tools_of_providers_are_named_by_their_type() -> None:
    """So are their calls. An MCP server keeps its description, and its call its own name."""
    server = {"type": "mcp", "server_label": "s", "server_description": "Tickets."}
    tools = [{"type": "web_search"}, server, {"type": "function", "parameters": {}}]
    items = [{"type": "web_search_call"}, {"type": "mcp_call", "name": "find", "arguments": "{}"}]
    found = parse(RESPONSES, input=items, tools=tools).conversation
    named = [(tool.name, tool.description) for tool in found.tools]
    assert named == [("web_search", ""), ("mcp", "Tickets.")]
    assert found.turns[0].tool_calls == (ToolCall("web_search_call", ""), ToolCall("find", "{}"))
    assert found.unread == ("tools[2]",)
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
    (tool,) = parse(MESSAGES, tools=[search]).conversation.tools
    assert (tool.name, tool.parameters) == ("web_search", ())


def test_schemas_keep_what_signatures_need() -> None:
    """Types, enums, defaults, references, alternatives and nesting are read."""
    properties = {
        "a": {"type": ["string", "null"], "enum": ["x", "y"]},
        "b": {"$ref": "#/$defs/Address"},
        "c": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": 3},
        "d": {"type": "array", "items": {"type": "number"}},
        "e": {"properties": {"f": {}}},
    }
    tools = [function("f", type="object", required=["a"], properties=properties)]
    by_name = {p.name: p for p in read(USER, tools=tools).tools[0].parameters}
    assert [name for name, each in by_name.items() if each.required] == ["a"]
    kinds = [each.schema.type for each in by_name.values()]
    assert kinds == ["string|null", "Address", "any", "array", "object"]
    assert by_name["a"].schema.enum == ("x", "y")
    assert [child.type for child in by_name["c"].schema.alternatives] == ["integer", "null"]
    assert by_name["c"].schema.has_default
    assert by_name["d"].schema.items is not None
    assert by_name["d"].schema.items.type == "number"


OFFER = {"role": "assistant", "content": "I found a flight. Shall I book it?"}
SILENT = {"role": "assistant", "content": None, "tool_calls": [{"function": CALL}]}
RESULT = {"role": "tool", "tool_call_id": "c", "content": "done"}
SYSTEM = {"role": "system", "content": "Be brief."}


def said(text: str) -> dict[str, object]:
    """Return a user's message."""
    return {"role": "user", "content": text}


@pytest.mark.parametrize(
    ("messages", "deciding"),
    [
        # The last user turn with text, or else the last one.
        ([USER, OFFER, said("a")], 2),
        ([USER, said("  ")], 0),
        ([said("")], 0),
        ([SYSTEM], None),
        # What a confirmation approves; other words are a request.
        ([USER, OFFER, said("yes")], 1),
        ([USER, OFFER, said("Yes, please go ahead."), SILENT, RESULT], 1),
        ([USER, SILENT, RESULT, said("continue"), SILENT, RESULT, said("go on")], 0),
        ([USER, OFFER, said("yes, but the cheaper one")], 2),
        ([SYSTEM, said("go")], 1),
    ],
)
def test_turn_that_says_what_is_asked_for(messages: list[object], deciding: int | None) -> None:
    """It is None without any user turn."""
    assert read(*messages).deciding_turn == deciding


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        *((text, True) for text in ("y", "OK.", "sounds good, go ahead", "Sí, claro", "好的")),
        *((text, False) for text in ("", "great", "do the dishes", "yes " * 20, "ok?? why", "no")),
    ],
)
def test_short_approvals_are_confirmations(text: str, is_one: bool) -> None:
    """A text with any other word, or without an approving one, is a new request."""
    assert is_confirmation(text) is is_one


@pytest.mark.parametrize(
    ("api", "fields", "unread"),
    [
        (CHAT, {"messages": [USER, {"role": "poet", "content": "x"}]}, ("messages[1]",)),
        (CHAT, {"messages": [{"role": "user", "content": 7}]}, ("messages[0].content",)),
        (CHAT, {"tools": [7, {"type": "function"}, function("f")]}, ("tools[0]", "tools[1]")),
        (
            RESPONSES,
            {"input": [1, {"type": "item_reference", "id": "i"}, USER], "prompt": {"id": "p"}},
            ("prompt", "input[0]", "input[1]"),
        ),
    ],
)
def test_unreadable_parts_are_listed(
    api: Api, fields: dict[str, Any], unread: tuple[str, ...]
) -> None:
    """An unreadable part is listed by its path, and the rest is still read."""
    assert parse(api, **fields).conversation.unread == unread


@pytest.mark.parametrize(
    ("api", "fields", "param", "code"),
    [
        (CHAT, {"model": 3}, "model", "invalid_type"),
        (CHAT, {"model": ""}, "model", "invalid_type"),
        (CHAT, {"tools": {}}, "tools", "invalid_type"),
        (RESPONSES, {"input": 1}, "input", "invalid_type"),
        (RESPONSES, {"input": ""}, "input", "empty_array"),
        (MESSAGES, {"max_tokens": None}, "max_tokens", "invalid_type"),
    ],
)
def test_invalid_fields_are_named(api: Api, fields: dict[str, Any], param: str, code: str) -> None:
    """The error names the field, has OpenAI's code, and says what to send."""
    with pytest.raises(InvalidRequestError) as caught:
        parse(api, **fields)
    assert (caught.value.param, caught.value.code) == (param, code)
    assert f"'{param}'" in caught.value.message
    assert "but got a string" not in caught.value.message  # where a string is wanted


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {f"p{i}": {"type": "string"} for i in range(MAX_TOOL_VALUES)}},
        {"properties": {"a": {"enum": [[[i] for i in range(MAX_TOOL_VALUES)]]}}},
        {"description": "a" * MAX_TOOL_CHARACTERS},
        {"properties": {"a" * MAX_TOOL_CHARACTERS: {}}},
    ],
    ids=["objects", "lists", "text", "name"],
)
def test_tools_from_the_first_too_large_one_are_unread(schema: dict[str, Any]) -> None:
    """Tools before a too large one are read, in every form of request."""
    first, large = function("first", **nested(3)), function("f", **schema)
    found = read(USER, tools=[first, large, function("last")])
    assert found.unread == ("tools[1:]",)
    assert [known.name for known in found.tools] == ["first"]
    alone = read(USER, tools=[large])
    assert (alone.unread, alone.tools, alone.has_tools) == (("tools[0:]",), (), True)
    inner = [first["function"], large["function"]]
    assert read(USER, functions=inner).unread == ("functions[1:]",)
    tools = [each | {"type": "function"} for each in inner]
    assert parse(RESPONSES, tools=tools).conversation.unread == ("tools[1:]",)


def test_tools_beyond_the_maximum_are_unread() -> None:
    """The first tools are read, and the others are listed as unread."""
    tools = [function(f"f{i}") for i in range(MAX_TOOLS + 5)]
    found = read(USER, tools=tools)
    assert [tool.name for tool in found.tools] == [f"f{i}" for i in range(MAX_TOOLS)]
    assert found.unread == (f"tools[{MAX_TOOLS}:]",)
    assert read(USER, tools=tools[:MAX_TOOLS]).unread == ()


def test_messages_in_the_middle_of_many_are_unread() -> None:
    """The first messages identify a conversation, and the last ones are to be answered."""
    half = MAX_MESSAGES // 2
    messages = [said(str(i)) for i in range(MAX_MESSAGES + 5)]
    texts = [str(i) for i in (*range(half), *range(half + 5, MAX_MESSAGES + 5))]
    responses = parse(RESPONSES, input=messages).conversation
    for found, field in ((read(*messages), "messages"), (responses, "input")):
        assert [turn.text for turn in found.turns] == texts
        assert found.unread == (f"{field}[{half}:{half + 5}]",)
    assert read(*messages[:MAX_MESSAGES]).unread == ()


def test_parts_and_calls_beyond_the_maximum_are_unread() -> None:
    """All messages share one limit, and each message that is cut is listed."""
    part, call = {"type": "text", "text": "a"}, {"function": {"name": "f", "arguments": "{}"}}
    found = read(
        {"role": "user", "content": [part] * (MAX_PARTS - 10)},
        {"role": "assistant", "tool_calls": [call] * 15},
        {"role": "user", "content": [part]},
        {"role": "user", "content": "whole"},
    )
    assert len(found.turns[1].tool_calls) == 10
    assert [turn.text for turn in found.turns[2:]] == ["", "whole"]
    assert found.unread == ("messages[1].tool_calls[10:]", "messages[2].content[0:]")


def test_schema_depth_limit_is_exact() -> None:
    """A schema at the depth limit is read, and a deeper one is refused."""
    read(USER, tools=[function("f", **nested(MAX_SCHEMA_DEPTH))])
    with pytest.raises(InvalidRequestError) as caught:
        read(USER, tools=[function("f", **nested(MAX_SCHEMA_DEPTH + 1))])
    assert (caught.value.param, caught.value.code) == ("tools[0].parameters", "schema_too_deep")
