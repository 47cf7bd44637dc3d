"""The tools of a request, in any of the forms that OpenAI's APIs give them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import orjson

from router_service.core.cache import Cache
from router_service.core.messages.body import Json, text_of, wrong_type
from router_service.core.messages.schemas import parse_schema
from router_service.core.messages.values import ToolSpec

_PARSED_BYTES = 8
"""Memory that a byte of a schema's JSON takes once it is parsed, about."""

_Read = tuple[tuple[ToolSpec, ...], tuple[str, ...]]
"""The tools of a list, and the paths of those that have no name."""

_read: Cache[tuple[str, bytes], _Read] = Cache(max_bytes=8 * 2**20)
"""Agents send the same tools with every turn: parsing 30 of them takes 0.4 ms, looking them up
0.02 ms, and who gets the same objects compares them at once."""


def read_tools(body: Mapping[str, Json], unread: list[str]) -> tuple[ToolSpec, ...]:
    """Return the tools of a body, and note the paths of those that have no name."""
    found: list[tuple[ToolSpec, ...]] = []
    for field in ("tools", "functions"):
        entries = body.get(field)
        if entries is not None:
            tools, nameless = _read_tool_list(entries, field)
            found.append(tools)
            unread.extend(nameless)
    return found[0] if len(found) == 1 else tuple(tool for tools in found for tool in tools)


def _read_tool_list(entries: Json, field: str) -> _Read:
    if not isinstance(entries, list):
        raise wrong_type(field, "an array", entries)
    try:
        key = (field, orjson.dumps(entries))
    except orjson.JSONEncodeError:
        return _parse_tool_list(entries, field)  # it writes 254 levels, and reads 1024
    read = _read.get(key)
    if read is None:
        read = _parse_tool_list(entries, field)
        _read.put(key, read, size_bytes=len(key[1]) * (1 + _PARSED_BYTES))
    return read


def _parse_tool_list(entries: Sequence[Json], field: str) -> _Read:
    tools: list[ToolSpec] = []
    nameless: list[str] = []
    for index, entry in enumerate(entries):
        inner = inner_tool({"function": entry} if field == "functions" else entry)
        if inner is None:
            nameless.append(f"{field}[{index}]")
        else:
            tools.append(_read_tool(inner, f"{field}[{index}]"))
    return tuple(tools), tuple(nameless)


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
