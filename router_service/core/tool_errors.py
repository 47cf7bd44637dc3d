"""The results of tool calls that a request ends with, and whether they say that a call failed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, takewhile

import orjson

from router_service.core.messages import Json, as_list, as_text

MAX_RESULTS = 32
"""Results of one request that are read: agents rarely make more calls at a time."""
MAX_READ_CHARACTERS = 64 * 1024
"""A longer result is read as text up to here, and not as JSON."""

# What frameworks write for a tool that raised: "Error: ...", "ValueError: ...", a traceback,
# "Error executing tool x: ..." (MCP), "Error invoking tool ..." (LangGraph), "An error occurred
# while running the tool." (OpenAI Agents SDK). A page about "Error handling" is none of these.
_ERROR = re.compile(
    r"(?:"
    r"error\s*(?:[:\[(-]|\n|$)"
    r"|error (?:executing|invoking|calling|running)\b"
    r"|an error occurred\b"
    r"|traceback \(most recent call last\)"
    r"|[a-z_.]{0,80}(?:error|exception):"
    r")",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of one call, by the call's id."""

    call_id: str
    is_error: bool


def latest_tool_results(body: Mapping[str, Json]) -> tuple[ToolResult, ...]:
    """Return the results that a request of either API ends with, last first, at most `MAX_RESULTS`.

    Each of them is new: earlier results come before an answer.
    """
    items = as_list(body.get("messages")) or as_list(body.get("input"))
    return tuple(map(_result, takewhile(_is_result, islice(reversed(items), MAX_RESULTS))))


def _is_result(item: Json) -> bool:
    if not isinstance(item, dict):
        return False
    is_output = as_text(item.get("type")).endswith("_call_output")
    return bool(_call_id(item)) and (item.get("role") == "tool" or is_output)


def _result(item: Mapping[str, Json]) -> ToolResult:
    content = item.get("content", item.get("output"))
    return ToolResult(_call_id(item), _is_marked(item) or is_tool_error(content))


def _call_id(item: Mapping[str, Json]) -> str:
    return as_text(item.get("tool_call_id", item.get("call_id")))


def is_tool_error(content: Json) -> bool:
    """Whether a tool's result says that the call failed.

    It does where it is JSON that is marked as an error (MCP's `isError`, an `error` that is not
    empty, `success` or `ok` that is false), or a text that begins as an error's.
    """
    text = "\n".join(_texts(content))
    if len(text) <= MAX_READ_CHARACTERS and text.lstrip().startswith("{"):
        try:
            return _is_marked(orjson.loads(text))
        except orjson.JSONDecodeError:
            return False
    return _ERROR.match(text[:MAX_READ_CHARACTERS].lstrip()) is not None


def _is_marked(value: Mapping[str, Json]) -> bool:
    says_error = value.get("isError") is True or value.get("is_error") is True
    is_failed = value.get("success") is False or value.get("ok") is False
    return says_error or is_failed or bool(value.get("error"))


def _texts(content: Json) -> Iterator[str]:
    yield as_text(content)
    for part in as_list(content):
        yield as_text(part.get("text") if isinstance(part, dict) else part)
