"""Tool results at the end of a request, and whether they report an error."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

import orjson

from router_service.core.messages import Json, as_list, as_text

MAX_RESULTS = 32
"""Most results of one request that are read. Agents rarely make more calls at a time."""
MAX_READ_CHARACTERS = 64 * 1024
"""Longer results are read as text up to here, and not as JSON."""

# The texts of frameworks for a tool that raised: "Error: ...", "ValueError: ...", a traceback,
# "Error executing tool x: ..." (MCP), "Error invoking tool ..." (LangGraph), "An error occurred
# while running the tool." (OpenAI Agents SDK). A page about "Error handling" does not match.
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
    """The result of the tool call with an id."""

    call_id: str
    is_error: bool


def latest_tool_results(body: Mapping[str, Json]) -> tuple[ToolResult, ...]:
    """Return the results at the end of a request, last first, at most `MAX_RESULTS`.

    All of them are new, because earlier results precede an answer.
    """
    items = as_list(body.get("messages")) or as_list(body.get("input"))
    results: list[ToolResult] = []
    for item in islice(reversed(items), MAX_RESULTS):
        if not isinstance(item, dict):
            break
        call_id = as_text(item.get("tool_call_id", item.get("call_id")))
        is_output = as_text(item.get("type")).endswith("_call_output")
        if not call_id or not (item.get("role") == "tool" or is_output):
            break
        content = item.get("content", item.get("output"))
        results.append(ToolResult(call_id, _is_marked(item) or is_tool_error(content)))
    return tuple(results)


def is_tool_error(content: Json) -> bool:
    """Return whether a tool's result reports that the call failed.

    That is JSON that is marked as an error (MCP's `isError`, an `error` that is not empty,
    `success` or `ok` that is false), or a text that begins like an error message.
    """
    texts = [as_text(content)]
    for part in as_list(content):
        texts.append(as_text(part.get("text") if isinstance(part, dict) else part))  # noqa: PERF401
    text = "\n".join(texts)
    if len(text) <= MAX_READ_CHARACTERS and text.lstrip().startswith("{"):
        try:
            return _is_marked(orjson.loads(text))
        except orjson.JSONDecodeError:
            return False
    return _ERROR.match(text[:MAX_READ_CHARACTERS].lstrip()) is not None


def _is_marked(value: Mapping[str, Json]) -> bool:
    has_flag = value.get("isError") is True or value.get("is_error") is True
    has_failed = value.get("success") is False or value.get("ok") is False
    return has_flag or has_failed or bool(value.get("error"))
