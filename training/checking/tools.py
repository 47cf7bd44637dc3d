"""The tools of a request as the checker needs them: schemas by name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

import orjson

from training.checking.schema import ANYTHING, Schema
from training.records import Json

_NOT_IN_NAMES = re.compile(r"[^\w-]", re.ASCII)


class Toolbox:
    """A request's function tools; two names are one where an API would not tell them apart."""

    def __init__(self, tools: Sequence[Mapping[str, Json]]) -> None:
        self._schemas = dict(filter(None, map(_compiled, tools)))
        self._folded = [fold(name) for name in self._schemas]

    def name(self, name: str) -> str:
        """Return the offered name that a name stands for; the name as an API takes it if none."""
        if name in self._schemas:
            return name
        folded = fold(name)
        if self._folded.count(folded) != 1:
            return folded
        return list(self._schemas)[self._folded.index(folded)]

    def schema(self, name: str) -> Schema:
        """Return the schema of a function's arguments; anything where it is not offered."""
        return self._schemas.get(self.name(name), ANYTHING)


def fold(name: str) -> str:
    """Return a function's name as a function-calling API takes it: `.` becomes `_`."""
    return _NOT_IN_NAMES.sub("_", name)


def _compiled(tool: Mapping[str, Json]) -> tuple[str, Schema] | None:
    """Return a function tool's name and schema; None for a tool of another kind."""
    try:
        return _from_json(orjson.dumps(tool))
    except orjson.JSONEncodeError:  # an integer beyond 64 bits; rare enough to go uncached
        return _read(tool)


@lru_cache(maxsize=1 << 13)
def _from_json(tool: bytes) -> tuple[str, Schema] | None:
    """Keep compiled tools: the same tool is judged once for every model, and in many queries."""
    return _read(orjson.loads(tool))


def _read(tool: Mapping[str, Json]) -> tuple[str, Schema] | None:
    function = tool.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return None
    parameters = function.get("parameters")
    return function["name"], Schema(parameters) if parameters is not None else ANYTHING
