"""The tools of a request, in any of the forms that OpenAI's APIs give them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from router_service.core.messages.body import Json, text_of, wrong_type
from router_service.core.messages.schemas import parse_schema
from router_service.core.messages.values import ToolSpec


def read_tools(body: Mapping[str, Json], unread: list[str]) -> Iterator[ToolSpec]:
    """Yield the tools of a body, and note the paths of those that have no name."""
    yield from _read_tool_list(body, "tools", unread)
    yield from _read_tool_list(body, "functions", unread)


def _read_tool_list(body: Mapping[str, Json], field: str, unread: list[str]) -> Iterator[ToolSpec]:
    entries = body.get(field)
    if entries is None:
        return
    if not isinstance(entries, list):
        raise wrong_type(field, "an array", entries)
    for index, entry in enumerate(entries):
        inner = inner_tool({"function": entry} if field == "functions" else entry)
        if inner is None:
            unread.append(f"{field}[{index}]")
        else:
            yield _read_tool(inner, f"{field}[{index}]")


def inner_tool(entry: Json) -> Mapping[str, Json] | None:
    """Return the object that bears the name: `function`, `custom`, or the entry itself, or None."""
    if not isinstance(entry, dict):
        return None
    inner = entry.get("function", entry.get("custom", entry))
    named = isinstance(inner, dict) and isinstance(inner.get("name"), str)
    return inner if named else None


def _read_tool(tool: Mapping[str, Json], path: str) -> ToolSpec:
    schema = parse_schema(tool.get("parameters"), f"{path}.parameters")
    return ToolSpec(tool["name"], text_of(tool.get("description")), schema.properties)
