"""Reading of Responses requests as equivalent chat requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router_service.apis.conversation import (
    Conversation,
    Json,
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


TEXTS = st.text(max_size=8)
CALLS = st.lists(st.tuples(st.sampled_from(["f", "g"]), TEXTS), max_size=3)
TURNS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["user", "developer", "system", "tool"]), TEXTS, st.just([])),
        st.tuples(st.just("assistant"), TEXTS, CALLS),
    ),
    min_size=1,
    max_size=8,
)


def chat_message(role: str, text: str, calls: list[tuple[str, str]]) -> Json:
    """Return a turn as a chat message."""
    entries = [{"function": {"name": name, "arguments": said}} for name, said in calls]
    return {"role": role, "content": text, "tool_calls": entries}


def response_items(role: str, text: str, calls: list[tuple[str, str]]) -> Iterator[Json]:
    """Yield a turn as Responses items."""
    if role == "tool":
        yield {"type": "function_call_output", "output": text}
        return
    yield {"type": "message", "role": role, "content": [{"type": "text", "text": text}]}
    for name, said in calls:
        yield {"type": "function_call", "name": name, "arguments": said}


@given(turns=TURNS, tools=st.lists(st.sampled_from(["f", "g"]), max_size=2))
def test_any_conversation_is_the_same_in_both_apis(turns: list[Any], tools: list[str]) -> None:
    """Both forms of any conversation give equal requests."""
    functions = [{"name": name, "parameters": PARAMETERS} for name in tools]
    chat = parse_chat_request(
        {
            "model": "m",
            "messages": [chat_message(*turn) for turn in turns],
            "tools": [{"type": "function", "function": function} for function in functions],
        }
    )
    responses = parse_responses_request(
        {
            "model": "m",
            "input": [item for turn in turns for item in response_items(*turn)],
            "tools": [{"type": "function", **function} for function in functions],
        }
    )
    assert responses == chat


def test_string_input_is_a_user_turn() -> None:
    """`input` as a string is one user turn."""
    assert (
        read(input="hello").turns
        == parse_chat_request(
            {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
        ).conversation.turns
    )


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
        ({"input": "x"}, None),
        (
            {"input": "x", "previous_response_id": "resp_1"},
            Reference("previous_response_id", "resp_1"),
        ),
        ({"previous_response_id": "r"}, Reference("previous_response_id", "r")),
        ({"input": [], "conversation": "conv_1"}, Reference("conversation", "conv_1")),
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
        ({}, "input", "missing_required_parameter"),
        ({"input": None}, "input", "invalid_type"),
        ({"input": 1}, "input", "invalid_type"),
        ({"input": {}}, "input", "invalid_type"),
        ({"input": []}, "input", "empty_array"),
        ({"input": ""}, "input", "empty_array"),
        ({"input": "x", "tools": {}}, "tools", "invalid_type"),
        ({"input": "x", "stream": 1}, "stream", "invalid_type"),
        ({"input": "x", "previous_response_id": 1}, "previous_response_id", "invalid_type"),
        ({"input": "x", "conversation": 1}, "conversation", "invalid_type"),
        ({"input": "x", "conversation": {"id": 1}}, "conversation", "invalid_type"),
    ],
)
def test_invalid_fields_are_named(fields: dict[str, Any], param: str, code: str) -> None:
    """A field of the wrong type, or a request without input, is refused by the field's name."""
    with pytest.raises(InvalidRequestError) as caught:
        parse_responses_request({"model": "m", **fields})
    assert (caught.value.param, caught.value.code) == (param, code)


def test_reading_does_not_change_the_body() -> None:
    """Joining calls to the turn before them leaves the body unchanged."""
    body = {
        "model": "m",
        "input": [
            {"role": "assistant", "content": "x"},
            {"type": "function_call", "name": "f", "arguments": "{}"},
        ],
    }
    parse_responses_request(body)
    assert body["input"] == [
        {"role": "assistant", "content": "x"},
        {"type": "function_call", "name": "f", "arguments": "{}"},
    ]


FIELDS = (
    "model input instructions tools stream previous_response_id conversation prompt type role "
    "content text name arguments output id call_id parameters function_call message"
).split()
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(FIELDS),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=5)
    ),
    max_leaves=20,
)


ITEMS = st.lists(st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4), max_size=3)
BODIES = st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=5) | st.fixed_dictionaries(
    {}, optional={"input": ITEMS, "tools": ITEMS}
)


@given(fields=BODIES)
def test_any_json_is_read_or_refused(fields: dict[str, Any]) -> None:
    """Any body is read, or refused by an error that names a field."""
    try:
        parse_responses_request({"model": "m", "input": "x"} | fields)
    except InvalidRequestError as exc:
        refused = exc
    else:
        return
    assert refused.param in FIELDS
