"""Mistakes in calls: their codes, where they are, and what was expected (paper, section 3.2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final

import orjson

from router_service.apis.conversation import Json
from router_service.checker.comparison import (
    Comparer,
    OneOf,
    accepted_arrays,
    accepted_values,
    enum_member,
    is_number,
)
from router_service.checker.parameter_schema import JsonType, Schema
from router_service.checker.toolbox import CallComparison, Tool, Toolbox, read_function

_TYPE_OF_CLASS: Final[Mapping[type, JsonType]] = {
    type(None): JsonType.NULL,
    bool: JsonType.BOOLEAN,
    str: JsonType.STRING,
    dict: JsonType.OBJECT,
}


class ErrorCode(StrEnum):
    """Reason why a call is rejected."""

    NOT_PARSED = "not_parsed"
    UNEXPECTED_CALL = "unexpected_call"
    WRONG_COUNT = "wrong_count"
    WRONG_FUNCTION = "wrong_function"
    WRONG_ORDER = "wrong_order"
    MISSING_PARAMETER = "missing_parameter"
    UNEXPECTED_PARAMETER = "unexpected_parameter"
    WRONG_TYPE = "wrong_type"
    WRONG_VALUE = "wrong_value"
    NOT_IN_ENUM = "not_in_enum"
    TOO_DEEP = "too_deep"


@dataclass(frozen=True, slots=True)
class CheckError:
    """One mistake in the calls: code, path such as `calls[0].arguments.city`, and description."""

    code: ErrorCode
    path: str
    detail: str


def toolbox_of(tools: Sequence[Mapping[str, Json]]) -> Toolbox:
    """Read the function tools of an OpenAI request and skip tools of other types."""
    read = []
    for tool in tools:
        try:
            read.append(tool_from_json(orjson.dumps(tool)))
        except orjson.JSONEncodeError:  # An integer above 64 bits: too rare to need the cache.
            read.append(_decode_tool(tool))
    return Toolbox(filter(None, read))


@lru_cache(maxsize=1 << 13)
def tool_from_json(tool: bytes) -> Tool | None:
    """Return the function tool in an OpenAI tool's JSON; None for another type of tool.

    Results are cached because the same tool occurs in many queries and for every model.
    """
    return _decode_tool(orjson.loads(tool))


def _decode_tool(tool: Json) -> Tool | None:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return None
    return read_function(function)


def score_call(compared: CallComparison, want: int, call: int) -> float:
    """Return the share of arguments that are correct; 0 if another function is called."""
    if compared.names[call] != compared.wanted[want].name:
        return 0.0
    arguments = compared.wanted[want].arguments.keys() | compared.calls[call].arguments.keys()
    return 1 - sum(1 for _ in compared.wrong_arguments(want, call)) / max(1, len(arguments))


def errors_in_call(compared: CallComparison, want: int, call: int) -> Iterator[CheckError]:
    """Yield every mistake in a call, compared with the expected call at index `want`."""
    wanted, made = compared.wanted[want], compared.calls[call]
    if compared.names[call] != wanted.name:
        detail = f"{made.name!r}, not {wanted.name!r}"
        yield CheckError(ErrorCode.WRONG_FUNCTION, f"calls[{call}].name", detail)
        return
    path = f"calls[{call}].arguments"
    for name in compared.wrong_arguments(want, call):
        yield _key_error(
            compared.comparer, name, made.arguments, wanted.arguments, wanted.schema, path
        )


def _key_error(
    comparer: Comparer,
    name: str,
    value: Mapping[str, Json],
    want: Mapping[str, Json],
    parent: Schema,
    path: str,
) -> CheckError:
    """Return the mistake at a key that `wrong_keys` yielded, with the deepest certain path."""
    key_path, schema = f"{path}.{name}", parent.key(name)
    if name not in want:
        detail = f"{_shorten(value[name])} where nothing was expected"
        return CheckError(ErrorCode.UNEXPECTED_PARAMETER, key_path, detail)
    accepted = accepted_values(want[name], schema)
    if name not in value:
        detail = f"expected {_join(accepted)}"
        return CheckError(ErrorCode.MISSING_PARAMETER, key_path, detail)
    given = value[name]
    if JsonType.ARRAY in schema.types:
        accepted = accepted_arrays(accepted, schema)
    if isinstance(given, dict) and len(accepted) == 1 and isinstance(accepted[0], dict):
        # If only one object is accepted, the mistake can be located inside the given object.
        for inner in comparer.wrong_keys(given, accepted[0], schema):
            return _key_error(comparer, inner, given, accepted[0], schema, key_path)
    if not _fits_type(given, schema.types):
        types = " or ".join(sorted(schema.types))
        detail = f"{_shorten(given)} is not of type {types}"
        return CheckError(ErrorCode.WRONG_TYPE, key_path, detail)
    if isinstance(given, str) and schema.members and enum_member(given, schema) is None:
        detail = f"{_shorten(given)} is not one of {_join(schema.members)}"
        return CheckError(ErrorCode.NOT_IN_ENUM, key_path, detail)
    detail = f"{_shorten(given)}, not {_join(accepted)}"
    return CheckError(ErrorCode.WRONG_VALUE, key_path, detail)


def _fits_type(value: Json, types: frozenset[JsonType]) -> bool:
    """Return whether a value has one of these types; a number also counts as a string."""
    if not types:
        return True
    if isinstance(value, float) and not value.is_integer():
        return not types.isdisjoint({JsonType.NUMBER, JsonType.STRING})
    if is_number(value):
        return not types.isdisjoint({JsonType.INTEGER, JsonType.NUMBER, JsonType.STRING})
    return _TYPE_OF_CLASS.get(type(value), JsonType.ARRAY) in types


def _join(accepted: Sequence[Json]) -> str:
    """Return at most three values, and the number of further values, for an error message."""
    shown = " or ".join(map(_shorten, accepted[:3]))
    return f"{shown} or {len(accepted) - 3} more" if len(accepted) > 3 else shown


def _shorten(value: Json) -> str:
    """Return a value in at most 120 characters, for an error message."""
    if isinstance(value, OneOf):
        return _join(value.values)
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
