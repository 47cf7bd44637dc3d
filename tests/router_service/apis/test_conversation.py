"""Reading of chat requests: every shape that the API allows, and clear errors for the rest."""

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
    Conversation,
    ToolCall,
    decode_object,
    is_confirmation,
    parse_chat_request,
    parse_conversation,
)
from router_service.apis.responses.chat_form import parse_responses_request
from router_service.core.errors import InvalidRequestError
from tests.attacks import BROKEN_JSON, OUTSIDE_JSON

USER = {"role": "user", "content": "hi"}


def conversation(*messages: object, **fields: object) -> Conversation:
    """Return the conversation with these messages."""
    return parse_conversation({"messages": list(messages), **fields})


def function(name: str, **schema: object) -> dict[str, Any]:
    """Return a function tool with this parameter schema."""
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def nested(levels: int) -> dict[str, Any]:
    """Return a schema with this many nested objects."""
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"inner": schema}}
    return schema


def test_all_kinds_of_calls_are_read() -> None:
    """Function calls, custom tool calls and the legacy `function_call` are all calls."""
    turn = conversation(
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
                {"id": "2", "type": "custom", "custom": {"name": "g", "input": "free text"}},
            ],
            "function_call": {"name": "h", "arguments": "{}"},
        }
    ).turns[0]
    assert turn.tool_calls == (
        ToolCall("f", '{"a":1}'),
        ToolCall("g", "free text"),
        ToolCall("h", "{}"),
    )


def test_all_kinds_of_tools_are_read() -> None:
    """Function tools, custom tools and legacy `functions` are all tools."""
    read = conversation(
        USER,
        tools=[function("f", type="object"), {"type": "custom", "custom": {"name": "g"}}],
        functions=[{"name": "h", "parameters": {"type": "object"}}],
    )
    assert [tool.name for tool in read.tools] == ["f", "g", "h"]


def test_schemas_keep_what_signatures_need() -> None:
    """Types, enums, defaults, references, alternatives and nesting are read."""
    schema = {
        "type": "object",
        "required": ["a"],
        "properties": {
            "a": {"type": ["string", "null"], "enum": ["x", "y"]},
            "b": {"$ref": "#/$defs/Address"},
            "c": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": 3},
            "d": {"type": "array", "items": {"type": "number"}},
            "e": {"properties": {"f": {}}},
        },
    }
    parameters = conversation(USER, tools=[function("f", **schema)]).tools[0].parameters
    by_name = {p.name: p for p in parameters}
    assert by_name["a"].required
    assert by_name["a"].schema.type == "string|null"
    assert by_name["a"].schema.enum == ("x", "y")
    assert by_name["b"].schema.type == "Address"
    assert [child.type for child in by_name["c"].schema.alternatives] == ["integer", "null"]
    assert by_name["c"].schema.has_default
    assert by_name["d"].schema.items is not None
    assert by_name["d"].schema.items.type == "number"
    assert by_name["e"].schema.type == "object"


@pytest.mark.parametrize(
    ("messages", "latest"),
    [
        ([USER], 0),
        ([USER, {"role": "assistant", "content": "yes?"}, {"role": "user", "content": "a"}], 2),
        ([USER, {"role": "user", "content": "  "}], 0),
        ([{"role": "user", "content": ""}], 0),
        ([{"role": "system", "content": "x"}], None),
    ],
)
def test_blank_user_turns_do_not_decide(messages: list[object], latest: int | None) -> None:
    """The last user turn with text decides; it is None without any user turn."""
    assert conversation(*messages).deciding_turn == latest


OFFER: dict[str, object] = {"role": "assistant", "content": "I found a flight. Shall I book it?"}
SILENT: dict[str, object] = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}
RESULT: dict[str, object] = {"role": "tool", "tool_call_id": "c", "content": "done"}


def said(text: str) -> dict[str, object]:
    """Return a user's message."""
    return {"role": "user", "content": text}


@pytest.mark.parametrize(
    ("messages", "deciding"),
    [
        ([USER, OFFER, said("yes")], 1),
        ([USER, OFFER, said("Yes, please go ahead."), SILENT, RESULT], 1),
        ([USER, SILENT, RESULT, said("go on")], 0),
        ([USER, SILENT, RESULT, said("continue"), SILENT, RESULT, said("go on")], 0),
        ([USER, OFFER, said("yes, but the cheaper one")], 2),
        ([{"role": "system", "content": "Be brief."}, said("go")], 1),
    ],
)
def test_confirmations_are_judged_by_what_they_approve(
    messages: list[object], deciding: int
) -> None:
    """The assistant's text before, or else the earlier request; other words are a request."""
    assert conversation(*messages).deciding_turn == deciding


@pytest.mark.parametrize(
    "text", ["Yes", "y", "OK.", "sounds good, go ahead", "do it", "Sí, claro", "ja bitte", "好的"]
)
def test_short_approvals_are_confirmations(text: str) -> None:
    """Capitals, punctuation and some other languages are recognized."""
    assert is_confirmation(text)


@pytest.mark.parametrize(
    "text", ["", "thanks", "great", "do the dishes", "go to Oslo", "yes " * 20, "ok?? why", "no"]
)
def test_other_short_texts_are_no_confirmations(text: str) -> None:
    """A text with any other word, or without an approving one, is a new request."""
    assert not is_confirmation(text)


@pytest.mark.parametrize(
    ("body", "unread"),
    [
        ({"messages": [USER, 7]}, ("messages[1]",)),
        ({"messages": [USER, {"role": "poet", "content": "x"}]}, ("messages[1]",)),
        ({"messages": [USER, {"role": ["user"], "content": "x"}]}, ("messages[1]",)),
        ({"messages": [{"role": "user", "content": 7}]}, ("messages[0].content",)),
        ({"messages": [USER], "tools": [7, function("f")]}, ("tools[0]",)),
        ({"messages": [USER], "tools": [{"type": "function"}]}, ("tools[0]",)),
    ],
)
def test_unreadable_parts_are_listed(body: dict[str, Any], unread: tuple[str, ...]) -> None:
    """An unreadable part is listed by its path, and the rest is still read."""
    assert parse_conversation(body).unread == unread


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"model": 3, "messages": [USER]}, "model", "invalid_type"),
        ({"model": "m", "messages": [USER], "tools": {}}, "tools", "invalid_type"),
        ({"model": "m", "messages": [USER], "functions": "f"}, "functions", "invalid_type"),
        ({"model": "m", "messages": [USER], "stream": "yes"}, "stream", "invalid_type"),
    ],
)
def test_invalid_fields_are_named(body: dict[str, Any], param: str, code: str) -> None:
    """The error names the field, has OpenAI's code, and says what to send."""
    with pytest.raises(InvalidRequestError) as caught:
        parse_chat_request(body)
    assert (caught.value.param, caught.value.code) == (param, code)
    assert f"'{param}'" in caught.value.message


def test_schema_depth_limit_is_exact() -> None:
    """A schema at the depth limit is read, and a deeper one is refused."""
    conversation(USER, tools=[function("f", **nested(MAX_SCHEMA_DEPTH))])
    with pytest.raises(InvalidRequestError) as caught:
        conversation(USER, tools=[function("f", **nested(MAX_SCHEMA_DEPTH + 1))])
    assert caught.value.code == "schema_too_deep"
    assert caught.value.param == "tools[0].parameters"


NOT_OBJECTS = {
    **BROKEN_JSON,
    **{name: b'{"a":%b}' % value for name, value in OUTSIDE_JSON.items()},
    "an array": b"[1]",
    "null": b"null",
}


@pytest.mark.parametrize("body", NOT_OBJECTS.values(), ids=NOT_OBJECTS)
def test_bodies_that_are_not_objects_are_refused(body: bytes) -> None:
    """Any other bytes raise an InvalidRequestError."""
    with pytest.raises(InvalidRequestError):
        decode_object(body)


def test_tools_beyond_the_maximum_are_unread() -> None:
    """The first tools are read, and the others are listed as unread."""
    tools = [function(f"f{i}") for i in range(MAX_TOOLS + 5)]
    read = conversation(USER, tools=tools)
    assert [tool.name for tool in read.tools] == [f"f{i}" for i in range(MAX_TOOLS)]
    assert read.unread == (f"tools[{MAX_TOOLS}:]",)
    assert conversation(USER, tools=tools[:MAX_TOOLS]).unread == ()


PROPERTIES: dict[str, Any] = {f"p{i}": {"type": "string"} for i in range(MAX_TOOL_VALUES)}
TOO_LARGE: list[dict[str, Any]] = [
    function("f", properties=PROPERTIES),
    function("f", properties={"a": {"enum": [[[i] for i in range(MAX_TOOL_VALUES)]]}}),
    function("f", description="a" * MAX_TOOL_CHARACTERS),
    function("f", properties={"a" * MAX_TOOL_CHARACTERS: {}}),
]


@pytest.mark.parametrize("tool", TOO_LARGE, ids=range(len(TOO_LARGE)))
def test_tools_from_the_first_too_large_one_are_unread(tool: dict[str, Any]) -> None:
    """Tools before a too large one are read, in every form of request."""
    first, last = function("first", **nested(3)), function("last")
    for tools, path in (([first, tool, last], "tools[1:]"), ([tool], "tools[0:]")):
        read = conversation(USER, tools=tools)
        assert read.unread == (path,)
        assert [known.name for known in read.tools] == ["first"][: len(tools) - 1]
        assert parse_chat_request(
            {"model": "m", "messages": [USER], "tools": tools}
        ).conversation.has_tools
    legacy = [first["function"], tool["function"]]
    assert conversation(USER, functions=legacy).unread == ("functions[1:]",)
    responses = [first["function"], tool["function"] | {"type": "function"}]
    request = parse_responses_request({"model": "m", "input": "hi", "tools": responses})
    assert request.conversation.unread == ("tools[1:]",)


def test_messages_in_the_middle_of_many_are_unread() -> None:
    """The first messages identify a conversation, and the last ones are to be answered."""
    half = MAX_MESSAGES // 2
    messages = [{"role": "user", "content": str(i)} for i in range(MAX_MESSAGES + 5)]
    chat = conversation(*messages)
    responses = parse_responses_request({"model": "m", "input": messages}).conversation
    texts = [str(i) for i in (*range(half), *range(half + 5, MAX_MESSAGES + 5))]
    for read, field in ((chat, "messages"), (responses, "input")):
        assert [turn.text for turn in read.turns] == texts
        assert read.unread == (f"{field}[{half}:{half + 5}]",)
    assert conversation(*messages[:MAX_MESSAGES]).unread == ()


def test_parts_and_calls_beyond_the_maximum_are_unread() -> None:
    """All messages share one limit, and each message that is cut is listed."""
    part, call = {"type": "text", "text": "a"}, {"function": {"name": "f", "arguments": "{}"}}
    read = conversation(
        {"role": "user", "content": [part] * (MAX_PARTS - 10)},
        {"role": "assistant", "tool_calls": [call] * 15},
        {"role": "user", "content": [part]},
        {"role": "user", "content": "whole"},
    )
    assert len(read.turns[1].tool_calls) == 10
    assert [turn.text for turn in read.turns[2:]] == ["", "whole"]
    assert read.unread == ("messages[1].tool_calls[10:]", "messages[2].content[0:]")
