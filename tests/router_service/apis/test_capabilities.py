"""What requests require of a model, and whether a model is known not to support it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router_service.apis.capabilities import (
    BYTES_PER_TOKEN,
    Capabilities,
    Feature,
    Requirements,
    read_requirements,
)
from router_service.apis.conversation import Conversation, parse_conversation
from router_service.core.errors import SwitchcraftError
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
    ({}, set()),
    ({"tools": TOOLS}, {Feature.TOOLS}),
    ({"tools": TOOLS, "tool_choice": "auto"}, {Feature.TOOLS}),
    ({"tools": TOOLS, "tool_choice": "required"}, {Feature.TOOLS, Feature.TOOL_CHOICE}),
    ({"tools": TOOLS, "tool_choice": "any"}, {Feature.TOOLS, Feature.TOOL_CHOICE}),
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
    ({"tools": TOOLS, "parallel_tool_calls": False}, {Feature.TOOLS}),
    ({"tools": TOOLS, "parallel_tool_calls": True}, {Feature.TOOLS, Feature.PARALLEL_TOOL_CALLS}),
    (
        {"functions": [{"name": "f"}], "function_call": {"name": "f"}},
        {Feature.TOOLS, Feature.TOOL_CHOICE},
    ),
    ({"messages": [{"role": "user", "content": [IMAGE]}]}, {Feature.IMAGES}),
    ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, {Feature.AUDIO}),
    ({"messages": [{"role": "user", "content": [{"type": "file"}]}]}, {Feature.FILES}),
    ({"response_format": {"type": "json_object"}}, {Feature.JSON_OBJECT}),
    ({"response_format": SCHEMA}, {Feature.JSON_SCHEMA}),
    ({"response_format": {"type": "text"}}, set()),
    ({"n": 1}, set()),
    ({"n": 2}, {Feature.SEVERAL_CHOICES}),
    ({"logprobs": True}, {Feature.LOGPROBS}),
    ({"logprobs": False, "top_logprobs": 0}, set()),
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


def test_tools_deeper_than_can_be_written_are_not_counted() -> None:
    """A field that nests hundreds of levels is accepted."""
    deep = orjson.loads(b'{"a":' * 900 + b"1" + b"}" * 900)
    body = {"messages": ASK, "tools": [TOOLS[0] | {"x": deep}]}
    assert requirements(body).input_tokens == requirements({"messages": ASK}).input_tokens


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
FIELDS = (
    "tools functions tool_choice function_call parallel_tool_calls n logprobs audio text input "
    "messages response_format max_tokens max_completion_tokens max_output_tokens".split()
)


@given(st.dictionaries(st.sampled_from(FIELDS), json_values))
def test_any_body_is_read(body: dict[str, Any]) -> None:
    """No value of a field is an error here. Judging it is the parser's or the upstream's task."""
    assert apis.CHAT.title in read_requirements(body, Conversation(()), apis.CHAT.title).features


def test_unknown_capabilities_exclude_nothing() -> None:
    """A model without known limits meets all requirements."""
    everything = Requirements(10**9, 10**9, 10**6, frozenset(Feature))
    assert Capabilities().lacks(everything) == ()
    assert Capabilities().excess_tokens(everything) is None


@pytest.mark.parametrize(
    ("known", "missing"),
    [
        ({"context_window_tokens": 100}, ()),
        ({"context_window_tokens": 99}, ("about 100 tokens of input (limit: 99)",)),
        ({"max_output_tokens": 49}, ("50 tokens of output (limit: 49)",)),
        ({"max_tools": 2}, ("3 tools (limit: 2)",)),
        ({"unsupported": {Feature.AUDIO}}, ()),
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


@pytest.mark.parametrize("junk", [None, 3, "x", [], {}, [1], [{"type": []}], {"type": 3}, True])
@pytest.mark.parametrize(
    "field",
    ["tools", "functions", "tool_choice", "text", "input", "n", "max_tokens", "response_format"],
)
def test_invalid_fields_are_not_requirements(field: str, junk: object) -> None:
    """Judging a field of the wrong type is the parser's or the upstream's task."""
    body = {"messages": ASK, field: junk}
    try:
        conversation = parse_conversation(body)
    except SwitchcraftError:
        return
    assert apis.CHAT.title in read_requirements(body, conversation, apis.CHAT.title).features
