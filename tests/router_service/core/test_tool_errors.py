"""Tool results at the end of a request, and which of them report an error."""

from __future__ import annotations

import time
from typing import Any

import pytest

from router_service.core.tool_errors import (
    MAX_READ_CHARACTERS,
    MAX_RESULTS,
    ToolResult,
    is_tool_error,
    latest_tool_results,
)

ERRORS = [
    "Error: no such city",
    "error",
    "ValueError: invalid literal for int()",
    "requests.exceptions.HTTPError: 404",
    "  Traceback (most recent call last):\n  File ...",
    "Error executing tool get_weather: 1 validation error",
    "Error invoking tool 'get_weather' with kwargs {}",
    "An error occurred while running the tool. Please try again. Error: x",
    '{"isError": true, "content": []}',
    '{"error": "not found"}',
    '{"error": {"code": 404}}',
    '{"success": false, "message": "no"}',
    '{"ok": false}',
    [{"type": "text", "text": "Error: no"}],
]
GOOD = [
    "",
    "7 degrees",
    "Error handling in Python is done by exceptions.",
    "Errors: 0, warnings: 2",
    "No error: all is well",
    '{"error": null, "result": 1}',
    '{"error": "", "result": 1}',
    '{"errors": 0, "success": true}',
    '{"result": "Error: is a word"}',
    '["Error: x"]',
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


def test_a_chat_requests_last_results() -> None:
    """Results after the last answer are new, and those before it are not."""
    messages = [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "tool_calls": [{"id": "a"}]},
        {"role": "tool", "tool_call_id": "a", "content": "Error: old"},
        {"role": "assistant", "tool_calls": [{"id": "b"}, {"id": "c"}]},
        {"role": "tool", "tool_call_id": "b", "content": "fine"},
        {"role": "tool", "tool_call_id": "c", "content": "x", "isError": True},
    ]
    expected = (ToolResult("c", is_error=True), ToolResult("b", is_error=False))
    assert latest_tool_results({"messages": messages}) == expected
    said = {"role": "user", "content": "Never mind."}
    assert latest_tool_results({"messages": [*messages, said]}) == ()


def test_a_responses_requests_last_results() -> None:
    """The same holds for items of the Responses API."""
    output = {"type": "function_call_output", "call_id": "a", "output": '{"error": "x"}'}
    items = [{"role": "user", "content": "Go."}, {"type": "function_call", "call_id": "a"}, output]
    assert latest_tool_results({"input": items}) == (ToolResult("a", is_error=True),)
    assert latest_tool_results({"input": "Go."}) == ()


@pytest.mark.parametrize("messages", [None, 7, "text", [None, 7], [{"role": "tool"}], [[]]])
def test_unreadable_messages_are_not_results(messages: Any) -> None:  # noqa: ANN401
    """Judging a request is the upstream's task."""
    assert latest_tool_results({"messages": messages}) == ()


def test_long_whitespace_before_a_text_is_quick() -> None:
    """A pattern that started again at each blank took 0.1 s for one result."""
    started_s = time.thread_time()
    for text in (" " * MAX_READ_CHARACTERS, "error" + " " * 60_000 + "x", "a." * 90_000):
        assert not any(is_tool_error(text) for _ in range(20))
    assert time.thread_time() - started_s < 0.5


def test_only_the_last_results_are_read() -> None:
    """A request may contain any number of them."""
    messages = [{"role": "tool", "tool_call_id": str(i), "content": "ok"} for i in range(50_000)]
    found = latest_tool_results({"messages": messages})
    assert [result.call_id for result in found] == [str(49_999 - i) for i in range(MAX_RESULTS)]
