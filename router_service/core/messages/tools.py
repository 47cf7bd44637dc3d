"""The tools of a request, in any of the forms that OpenAI's APIs give them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import orjson

from router_service.core.cache import Cache
from router_service.core.messages.body import Json, text_of, wrong_type
from router_service.core.messages.schemas import parse_schema
from router_service.core.messages.values import ToolSpec

MAX_TOOLS = 1_000
MAX_TOOL_VALUES = 25_000
MAX_TOOL_CHARACTERS = 650_000
"""Limits of what is read of a list of tools: the number of tools, of JSON values in them, and of
characters in their keys and strings. The first tools within all three are read, and the rest is
noted as unread. A decision takes 7 us per value and 90 ns per character the first time it meets
them. 128 tools of 5 KB have 14,000 values and 600,000 characters."""

_PARSED_BYTES = 8
"""Memory that a byte of a schema's JSON takes once it is parsed, about."""

_Read = tuple[tuple[ToolSpec, ...], tuple[str, ...]]
"""The tools of a list, and the paths of those that were not read."""

_read: Cache[tuple[str, bytes], _Read] = Cache(max_bytes=8 * 2**20)
"""Agents send the same tools with every turn: parsing 30 of them takes 0.4 ms, looking them up
0.02 ms, and who gets the same objects compares them at once."""


def read_tools(body: Mapping[str, Json], unread: list[str]) -> tuple[ToolSpec, ...]:
    """Return the tools of a body, and note the paths of those without a name or beyond a limit."""
    found: list[tuple[ToolSpec, ...]] = []
    for field in ("tools", "functions"):
        entries = body.get(field)
        if entries is not None:
            tools, not_read = _read_tool_list(entries, field)
            found.append(tools)
            unread.extend(not_read)
    return found[0] if len(found) == 1 else tuple(tool for tools in found for tool in tools)


def _read_tool_list(entries: Json, field: str) -> _Read:
    if not isinstance(entries, list):
        raise wrong_type(field, "an array", entries)
    try:
        key = (field, orjson.dumps(entries))
    except orjson.JSONEncodeError:
        # `strict_json` would not have read it.
        return _parse_tool_list(entries, field, _count_readable(entries))
    read = _read.get(key)
    if read is None:
        # Values have 2 bytes or more, so that most lists need not be counted.
        is_small = len(key[1]) <= 2 * MAX_TOOL_VALUES
        readable = min(len(entries), MAX_TOOLS) if is_small else _count_readable(entries)
        read = _parse_tool_list(entries, field, readable)
        _read.put(key, read, size_bytes=len(key[1]) * (1 + _PARSED_BYTES))
    return read


def _parse_tool_list(entries: Sequence[Json], field: str, readable: int) -> _Read:
    tools: list[ToolSpec] = []
    unread: list[str] = []
    for index, entry in enumerate(entries[:readable]):
        inner = inner_tool({"function": entry} if field == "functions" else entry)
        if inner is None:
            unread.append(f"{field}[{index}]")
        else:
            tools.append(_read_tool(inner, f"{field}[{index}]"))
    if readable < len(entries):
        unread.append(f"{field}[{readable}:]")
    return tuple(tools), tuple(unread)


def _count_readable(entries: Sequence[Json]) -> int:
    """Return how many of the first entries are within the limits together."""
    values = characters = 0
    for index, entry in enumerate(entries[:MAX_TOOLS]):
        left = [entry]
        while left:
            value = left.pop()
            values += 1
            if isinstance(value, str):
                characters += len(value)
            elif isinstance(value, list):
                left += value
            elif isinstance(value, dict):
                left += value.values()
                characters += sum(map(len, value))
            if values + len(left) > MAX_TOOL_VALUES or characters > MAX_TOOL_CHARACTERS:
                return index
    return min(len(entries), MAX_TOOLS)


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
