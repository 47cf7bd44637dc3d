"""Checks of calls against schemas that may be hostile, and of tool results that report errors."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from router_service.apis.answers import WrittenCall
from router_service.checker.tool_checks import (
    MAX_CALLS,
    CallChecker,
    CallValidity,
    is_tool_error,
    parameters_by_tool,
)
from tests.bodies import WEATHER

Schema = Mapping[str, Any]


def fits(schema: Any, arguments: Any) -> CallValidity:  # noqa: ANN401 - JSON
    """Return whether arguments match a tool's schema."""
    call = WrittenCall("c", "f", orjson.dumps(arguments).decode())
    return CallChecker({"f": schema}).check(call)


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("get_weather", '{"city": "Oslo"}', CallValidity.VALID),
        ("get_weather", '{"city": 7}', CallValidity.INVALID),
        ("get_weather", "{}", CallValidity.INVALID),
        ("get_weather", '{"city": "Os', CallValidity.INVALID),
        ("send_mail", "{}", CallValidity.UNKNOWN_TOOL),
    ],
)
def test_calls_are_valid_or_invalid(name: str, arguments: str, expected: CallValidity) -> None:
    """The arguments must be one JSON object that the tool's schema allows."""
    parameters = parameters_by_tool({"tools": [WEATHER]})
    assert CallChecker(parameters).check(WrittenCall("c", name, arguments)) is expected


def test_nothing_is_fetched() -> None:
    """A reference to a server or a file opens no connection."""
    with socket.create_server(("127.0.0.1", 0)) as accumulator:
        accumulator.setblocking(False)
        address = f"http://127.0.0.1:{accumulator.getsockname()[1]}/schema.json"
        for reference in (address, "file:///etc/hostname", "other.json", "//host/x"):
            for keyword in ("$ref", "$dynamicRef"):
                assert (
                    fits({"properties": {"a": {keyword: reference}}}, {}) is CallValidity.UNCHECKED
                )
        assert fits({"$schema": address, "type": "object"}, {}) in {
            CallValidity.VALID,
            CallValidity.UNCHECKED,
        }
        with pytest.raises(BlockingIOError):
            accumulator.accept()


def bomb(levels: int, prefix: str = "#/$defs/") -> Schema:
    """Return a small schema that takes 2 ** levels steps."""
    doubled = {f"d{i}": {"allOf": [{"$ref": f"{prefix}d{i + 1}"}] * 2} for i in range(levels)}
    return {"$ref": f"{prefix}d0", "$defs": {**doubled, f"d{levels}": {"type": "object"}}}


NESTED: Schema = {"type": "object"}
for _ in range(30):
    NESTED = {"allOf": [NESTED], "unevaluatedProperties": False}

HOSTILE: list[Any] = [
    bomb(40),
    {"properties": {"pattern": bomb(40)}, "$ref": "#/properties/pattern"},
    {"$ref": "#"},
    {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    NESTED,
    {"anyOf": [{"const": i} for i in range(100_000)]},
    {"properties": {f"p{i}": {"pattern": r"^(\w{1,200}|x)$"} for i in range(2000)}},
    {"properties": {"a": {"pattern": "(a{1000}){1000}"}}},
    {"type": "strng"},
    [],
    7,
]


@pytest.mark.parametrize("schema", HOSTILE, ids=range(len(HOSTILE)))
def test_oversized_schemas_are_not_checked(schema: Any) -> None:  # noqa: ANN401
    """A schema that would take forever, or cannot be read, is rejected quickly."""
    assert fits(schema, {"a": "b", "next": {"next": {}}}) is CallValidity.UNCHECKED


def test_the_calls_of_an_answer_share_a_limit() -> None:
    """Beyond a number of calls, or an amount of work, calls are not checked."""
    simple = CallChecker({"f": {"type": "object"}})
    call = WrittenCall("c", "f", "{}")
    found = [simple.check(call) for _ in range(MAX_CALLS + 10)]
    assert found == [CallValidity.VALID] * MAX_CALLS + [CallValidity.UNCHECKED] * 10
    enum = {"properties": {"a": {"enum": list(range(500))}}}
    large = WrittenCall("c", "f", orjson.dumps({"b": "x" * 4_000}).decode())
    checker = CallChecker({"f": enum, "g": {"type": "object"}})
    found = [checker.check(large) for _ in range(10)]
    assert found == [CallValidity.VALID] * 4 + [CallValidity.UNCHECKED] * 6
    assert checker.check(WrittenCall("c", "g", "{}")) is CallValidity.VALID


ERRORS = [
    "Error: no such city",
    "error",
    "ValueError: invalid literal for int()",
    "  Traceback (most recent call last):\n  File ...",
    "Error executing tool get_weather: 1 validation error",
    "An error occurred while running the tool. Please try again. Error: x",
    '{"isError": true, "content": []}',
    '{"error": "not found"}',
    '{"success": false, "message": "no"}',
    [{"type": "text", "text": "Error: no"}],
]
GOOD = [
    "",
    "Error handling in Python is done by exceptions.",
    "No error: all is well",
    '{"error": null, "result": 1}',
    '{"errors": 0, "success": true}',
    '{"result": "Error: is a word"}',
    '{"error": ',
    None,
    7,
    [{"type": "image_url"}],
]


@pytest.mark.parametrize("content", ERRORS)
def test_errors_of_tools_are_recognized(content: Any) -> None:  # noqa: ANN401 - JSON
    """Frameworks and MCP servers write these for a tool that failed."""
    assert is_tool_error(content)


@pytest.mark.parametrize("content", GOOD)
def test_texts_about_errors_are_not_errors(content: Any) -> None:  # noqa: ANN401
    """A page about errors, or a report without any, is a good result."""
    assert not is_tool_error(content)
