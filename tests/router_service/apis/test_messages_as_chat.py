"""Messages requests are read as the equivalent chat requests."""

from __future__ import annotations

from typing import Any

import pytest

from router_service.apis.capabilities import Feature, read_requirements
from router_service.apis.conversation import Conversation, Role, ToolCall, Turn
from router_service.apis.messages.chat_form import parse_messages_request, to_chat_body
from router_service.core.errors import InvalidRequestError
from tests import apis

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"name": "get_weather", "description": "The weather.", "input_schema": SCHEMA}
QUESTION = {"role": "user", "content": "Oslo?"}


def parsed(**fields: object) -> Conversation:
    """Return the conversation of a request with these fields."""
    body = {"model": "m", "max_tokens": 100, "messages": [QUESTION], **fields}
    return parse_messages_request(to_chat_body(body)).conversation


def features(**fields: object) -> frozenset[str]:
    """Return the features that a request with these fields requires."""
    body = to_chat_body({"model": "m", "max_tokens": 100, "messages": [QUESTION], **fields})
    conversation = parse_messages_request(body).conversation
    return read_requirements(body, conversation, apis.MESSAGES.title).features


def test_blocks_become_turns() -> None:
    """System blocks, calls, results and texts become the turns of the same chat conversation."""
    image = {"type": "image", "source": {"type": "url", "url": "https://h/x.png"}}
    conversation = parsed(
        system=[{"type": "text", "text": "Be short.", "cache_control": {"type": "ephemeral"}}],
        messages=[
            QUESTION,
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "A"}},
                    {"type": "tool_use", "id": "t2", "name": "get_weather", "input": {"city": "B"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": "rain"},
                    {
                        "type": "tool_result",
                        "tool_use_id": "t2",
                        "content": [{"type": "text", "text": "sun"}, image],
                    },
                    {"type": "text", "text": "And now?"},
                ],
            },
        ],
    )
    calls = (ToolCall("get_weather", '{"city":"A"}'), ToolCall("get_weather", '{"city":"B"}'))
    assert conversation.turns == (
        Turn(Role.SYSTEM, "Be short."),
        Turn(Role.USER, "Oslo?"),
        Turn(Role.ASSISTANT, "I look.", 0, calls),
        Turn(Role.TOOL, "rain"),
        Turn(Role.TOOL, "sun", 1),
        Turn(Role.USER, "And now?"),
    )
    assert conversation.unread == ()


def test_tools_keep_their_schemas_names_and_types() -> None:
    """A tool is read like the same function in chat; a server tool is known by its name."""
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
    own, server = parsed(tools=[TOOL | {"type": "custom"}, search]).tools
    assert (own.name, own.description, own.parameters[0].name) == (
        "get_weather",
        "The weather.",
        "city",
    )
    assert (server.name, server.parameters) == ("web_search", ())
    assert to_chat_body({"messages": [], "tools": [search]})["tools"][0]["type"] == search["type"]


@pytest.mark.parametrize(
    ("fields", "required"),
    [
        ({"tools": [TOOL], "tool_choice": {"type": "auto"}}, {Feature.TOOLS}),
        ({"tools": [TOOL], "tool_choice": {"type": "any"}}, {Feature.TOOLS, Feature.TOOL_CHOICE}),
        (
            {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "get_weather"}},
            {Feature.TOOLS, Feature.TOOL_CHOICE},
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}, {"type": "document"}]}]},
            {Feature.IMAGES, Feature.FILES},
        ),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
            {Feature.JSON_SCHEMA},
        ),
    ],
)
def test_requirements_are_those_of_the_equivalent_chat_request(
    fields: dict[str, Any], required: set[Feature]
) -> None:
    """Models without images, forced calls and so on are recognized for this API too."""
    assert features(**fields) == required | {apis.MESSAGES.title}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"system": 5}, "system"),
    ],
)
def test_wrong_types_are_named(fields: dict[str, Any], param: str) -> None:
    """A field of the wrong type is an error that names it."""
    with pytest.raises(InvalidRequestError) as caught:
        parsed(**fields)
    assert caught.value.param == param
