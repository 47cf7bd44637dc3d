"""What requests require of a model, and whether a model is known not to support it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from router_service.apis.capabilities import (
    BYTES_PER_TOKEN,
    Capabilities,
    Feature,
    Requirements,
    read_requirements,
)
from router_service.apis.conversation import Conversation, parse_conversation
from tests import apis
from tests.bodies import ASK, TOOLS

CHAT = "/chat/completions"
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 10_000}}
FILE = {"type": "input_file", "file_data": "data:application/pdf;base64,AAAA"}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "schema": {}}}


def requirements(body: Mapping[str, Any], title: str = apis.CHAT.title) -> Requirements:
    """Return the requirements of a body."""
    conversation = parse_conversation(body) if "messages" in body else Conversation(())
    return read_requirements(body, conversation, title)


ASKED: list[tuple[dict[str, Any], set[Feature]]] = [
    ({"tools": TOOLS}, {Feature.TOOLS}),
    ({"tools": TOOLS, "tool_choice": "required"}, {Feature.TOOLS, Feature.TOOL_CHOICE}),
    (
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}},
        {Feature.TOOLS, Feature.TOOL_CHOICE},
    ),
    (
        {
            "tools": TOOLS,
            "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto"}},
        },
        {Feature.TOOLS},
    ),
    (
        {"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "mode": "required"}},
        {Feature.TOOLS, Feature.TOOL_CHOICE},
    ),
    ({"tools": TOOLS, "parallel_tool_calls": True}, {Feature.TOOLS, Feature.PARALLEL_TOOL_CALLS}),
    (
        {"functions": [{"name": "f"}], "function_call": {"name": "f"}},
        {Feature.TOOLS, Feature.TOOL_CHOICE},
    ),
    ({"messages": [{"role": "user", "content": [IMAGE]}]}, {Feature.IMAGES}),
    ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, {Feature.AUDIO}),
    ({"response_format": SCHEMA}, {Feature.JSON_SCHEMA}),
    ({"n": 2}, {Feature.SEVERAL_CHOICES}),
    ({"logprobs": True}, {Feature.LOGPROBS}),
    ({"n": "2", "tools": None, "response_format": "x", "tool_choice": 3}, set()),
]


@pytest.mark.parametrize(("fields", "features"), ASKED)
def test_requirements_of_a_chat_request(fields: dict[str, Any], features: set[Feature]) -> None:
    """Only features that a request asks for explicitly are required."""
    body = {"messages": ASK} | fields
    assert requirements(body).features == {apis.CHAT.title, *features}


def test_requirements_of_a_responses_request() -> None:
    """The Responses API's names for images, files and formats are read too."""
    body = {
        "input": [
            {"role": "user", "content": [{"type": "input_image", "image_url": "https://h/x"}]},
            {"type": "function_call_output", "call_id": "c", "output": [FILE]},
        ],
        "text": {"format": {"type": "json_schema", "name": "s", "schema": {}}},
        "tools": [{"type": "function", "name": "f"}],
        "tool_choice": {"type": "function", "name": "f"},
        "max_output_tokens": 99,
    }
    found = requirements(body, apis.RESPONSES.title)
    assert found.output_tokens == 99
    assert found.features == {
        apis.RESPONSES.title,
        Feature.IMAGES,
        Feature.FILES,
        Feature.JSON_SCHEMA,
        Feature.TOOLS,
        Feature.TOOL_CHOICE,
    }


def test_the_estimate_counts_only_text_and_tools() -> None:
    """An image's bytes are not counted. Text, calls and the tools' JSON are."""
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "ä" * 50}, IMAGE]}]}
    assert requirements(body).input_tokens == 100 // BYTES_PER_TOKEN
    with_tools = requirements(body | {"tools": TOOLS})
    assert with_tools.input_tokens == (100 + len(orjson.dumps(TOOLS))) // BYTES_PER_TOKEN
    assert with_tools.tools == 1


@pytest.mark.parametrize(
    ("known", "missing"),
    [
        ({"context_window_tokens": 99}, ("about 100 tokens of input (limit: 99)",)),
        ({"max_output_tokens": 49}, ("50 tokens of output (limit: 49)",)),
        ({"max_tools": 2}, ("3 tools (limit: 2)",)),
        ({"unsupported": {Feature.IMAGES, Feature.TOOLS}}, ("images", "tools")),
        (
            {"max_tools": 1, "unsupported": {Feature.TOOLS}},
            ("3 tools (limit: 1)", "tools"),
        ),
    ],
)
def test_unmet_requirements_are_described(known: dict[str, Any], missing: tuple[str, ...]) -> None:
    """A request at the limit is served. Beyond it, each reason is named with its number."""
    asked = Requirements(100, 50, 3, frozenset({Feature.IMAGES, Feature.TOOLS}))
    assert Capabilities.model_validate(known).lacks(asked) == missing


def test_only_the_length_is_too_long() -> None:
    """A shorter input does not help a model that also lacks a feature."""
    long = Requirements(input_tokens=100, features=frozenset({Feature.IMAGES}))
    assert Capabilities(context_window_tokens=10).excess_tokens(long) == 90
    blind = Capabilities(context_window_tokens=10, unsupported=frozenset({Feature.IMAGES}))
    assert blind.excess_tokens(long) is None
    assert Capabilities(context_window_tokens=1000).excess_tokens(long) is None
