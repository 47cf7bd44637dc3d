"""The tools of a request as the checker needs them: schemas by name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import orjson

from switchcraft_training.checking.schema import ANYTHING, Schema
from switchcraft_training.records import Json

_NOT_IN_NAMES = re.compile(r"[^\w-]", re.ASCII)


class Tool(NamedTuple):
    """A function tool; `folded` is its name as a function-calling API takes it."""

    name: str
    folded: str
    schema: Schema


class Toolbox:
    """A request's function tools; two names are one where an API would not tell them apart."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._tools = list(tools)

    def name(self, name: str) -> str:
        """Return the offered name that a name stands for; the name as an API takes it if none."""
        tool = self._find(name)
        return fold(name) if tool is None else tool.name

    def schema(self, name: str) -> Schema:
        """Return the schema of a function's arguments; anything where it is not offered."""
        tool = self._find(name)
        return ANYTHING if tool is None else tool.schema

    def _find(self, name: str) -> Tool | None:
        for tool in self._tools:
            if tool.name == name:
                return tool
        folded = fold(name)
        alike = [tool for tool in self._tools if tool.folded == folded]
        return alike[0] if len(alike) == 1 else None


def toolbox(tools: Sequence[Mapping[str, Json]]) -> Toolbox:
    """Return the function tools of an OpenAI request; those of other kinds are passed over."""
    return Toolbox(filter(None, map(_compiled, tools)))


def fold(name: str) -> str:
    """Return a function's name as a function-calling API takes it: `.` becomes `_`."""
    return _NOT_IN_NAMES.sub("_", name)


def _compiled(tool: Mapping[str, Json]) -> Tool | None:
    try:
        return tool_from_json(orjson.dumps(tool))
    except orjson.JSONEncodeError:  # an integer beyond 64 bits; rare enough to go uncached
        return _read(tool)


@lru_cache(maxsize=1 << 13)
def tool_from_json(tool: bytes) -> Tool | None:
    """Return a function tool, None for one of another kind.

    Kept, because the same tool is judged by for every model, and in many queries.
    """
    return _read(orjson.loads(tool))


def _read(tool: Json) -> Tool | None:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return None
    name, parameters = function["name"], function.get("parameters")
    return Tool(name, fold(name), ANYTHING if parameters is None else Schema(parameters))
