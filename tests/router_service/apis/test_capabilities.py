"""What requests require of a model, and whether a model is known not to support it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from router_service.apis.capabilities import (
    Capabilities,
    Feature,
    Requirements,
    read_requirements,
)
from router_service.apis.conversation import Conversation, parse_conversation
from tests import apis
from tests.bodies import ASK, TOOLS

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 10_000}}
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
        {"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "mode": "required"}},
        {Feature.TOOLS, Feature.TOOL_CHOICE},
    ),
    (
        {"functions": [{"name": "f"}], "function_call": {"name": "f"}},
        {Feature.TOOLS, Feature.TOOL_CHOICE},
    ),
    ({"messages": [{"role": "user", "content": [IMAGE]}]}, {Feature.IMAGES}),
    ({"response_format": SCHEMA}, {Feature.JSON_SCHEMA}),
    ({"n": 2}, {Feature.SEVERAL_CHOICES}),
    ({"n": "2", "tools": None, "response_format": "x", "tool_choice": 3}, set()),
]


@pytest.mark.parametrize(("fields", "features"), ASKED)
def test_requirements_of_a_chat_request(fields: dict[str, Any], features: set[Feature]) -> None:
    """Only features that a request asks for explicitly are required."""
    body = {"messages": ASK} | fields
    assert requirements(body).features == {apis.CHAT.title, *features}


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
