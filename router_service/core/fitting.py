"""Does a tool call fit its tool's schema? Schemas are a client's, and may be meant to do harm.

A validator holds the interpreter's lock while it works and cannot be stopped, so that what it is
given is bounded first: nothing is fetched, patterns run on an engine of linear time, and a schema
whose references multiply is not checked at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import lru_cache

import jsonschema_rs
import orjson

from router_service.core.messages import Json
from router_service.core.messages.body import items_of
from router_service.core.messages.tools import inner_tool
from router_service.core.said import WrittenCall

MAX_SCHEMA_BYTES = 64 * 1024
MAX_WEIGHT = 4000
"""Largest schema in values, each counted as often as references lead to it. The largest tool of the
recorded benchmarks has some 200."""
MAX_DEPTH = 64
MAX_WORK = 5_000_000
"""Most of a schema's values times an argument's bytes: at 25 ns for each pair, 0.13 s."""
_PATTERN_WEIGHT = 20
_PATTERN_OPTIONS = jsonschema_rs.RegexOptions(size_limit=64 * 1024, dfa_size_limit=64 * 1024)
"""Compiled, 50 patterns of this size take 10 ms and 1.3 MB."""
_UNCHECKED = frozenset(
    "$id $anchor $dynamicRef $dynamicAnchor $recursiveRef unevaluatedProperties "
    "unevaluatedItems".split()
)
"""Keywords that change what a reference means, or that evaluate what is beside them once more."""


class Fit(StrEnum):
    """Whether a call fits."""

    YES = "yes"
    NO = "no"
    """The arguments break the schema, or are no JSON object."""
    UNKNOWN_TOOL = "unknown_tool"
    UNCHECKED = "unchecked"
    """The tool takes free text, or its schema is none that is checked."""


class _UncheckedError(Exception):
    """A schema that is beyond the bounds."""


def parameters_by_tool(body: Mapping[str, Json]) -> dict[str, Json]:
    """Return the schemas of a request's tools by name; None of a tool that has none."""
    functions = ({"function": entry} for entry in items_of(body.get("functions")))
    tools = (inner_tool(entry) for entry in (*items_of(body.get("tools")), *functions))
    return {tool["name"]: tool.get("parameters") for tool in tools if tool is not None}


def fit(call: WrittenCall, parameters: Mapping[str, Json]) -> Fit:
    """Say whether a call fits the schema of its tool, one of `parameters_by_tool`."""
    if call.name not in parameters:
        return Fit.UNKNOWN_TOOL
    if call.is_custom:
        return Fit.UNCHECKED
    schema = parameters[call.name]
    if call.decoded() is None:
        return Fit.NO
    return Fit.YES if schema is None else _fit_schema(call, schema)


def _fit_schema(call: WrittenCall, schema: Json) -> Fit:
    try:
        validator, weight = _validator(orjson.dumps(schema)) or (None, 0)
        if validator is None or weight * len(call.arguments) > MAX_WORK:
            return Fit.UNCHECKED
        return Fit.YES if validator.is_valid(call.decoded()) else Fit.NO
    except (orjson.JSONEncodeError, ValueError):  # both are read deeper than either is written
        return Fit.UNCHECKED


# 256 of the heaviest schemas hold some 300 MB, of those that agents send some 3 MB.
@lru_cache(maxsize=256)
def _validator(text: bytes) -> tuple[jsonschema_rs.Draft202012Validator, int] | None:
    """Return what checks by a schema, and its weight; None where it is invalid or too much."""
    if len(text) > MAX_SCHEMA_BYTES:
        return None
    schema = orjson.loads(text)
    try:
        weight = _Weigher(schema).weight(schema, 0)
        validator = jsonschema_rs.Draft202012Validator(
            schema, pattern_options=_PATTERN_OPTIONS, offline=True, validate_formats=False
        )
    except (_UncheckedError, ValueError):
        return None
    return validator, weight


class _Weigher:
    """Counts a schema's values as a validator meets them: behind each reference anew."""

    def __init__(self, schema: Json) -> None:
        self._schema = schema
        self._targets: dict[str, int] = {}

    def weight(self, node: Json, depth: int) -> int:
        """Return the weight; raises _UncheckedError beyond a bound, or where references circle."""
        if depth > MAX_DEPTH:
            raise _UncheckedError
        total = 1 + sum(self._member(name, child, depth) for name, child in _members(node))
        if total > MAX_WEIGHT:
            raise _UncheckedError
        return total

    def _member(self, name: str, child: Json, depth: int) -> int:
        if name in _UNCHECKED:
            raise _UncheckedError
        if name == "$ref" and isinstance(child, str):
            return self._referred(child, depth)
        if name == "pattern" and isinstance(child, str):
            return _PATTERN_WEIGHT
        return self.weight(child, depth + 1) + _PATTERN_WEIGHT * (name == "patternProperties")

    def _referred(self, reference: str, depth: int) -> int:
        if reference not in self._targets:
            self._targets[reference] = MAX_WEIGHT + 1  # found again below itself, it is too much
            self._targets[reference] = self.weight(self._target(reference), depth + 1)
        return self._targets[reference]

    def _target(self, reference: str) -> Json:
        """Return what a JSON pointer leads to (RFC 6901); another document is not looked for."""
        # A name in two ways of writing could lead us to one place and the validator to another.
        if not reference.startswith("#") or "%" in reference:
            raise _UncheckedError
        node = self._schema
        for part in reference.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(node, dict) and name in node:
                node = node[name]
            elif isinstance(node, list) and name.isdecimal() and int(name) < len(node):
                node = node[int(name)]
            else:
                raise _UncheckedError
        return node


def _members(node: Json) -> Iterator[tuple[str, Json]]:
    if isinstance(node, dict):
        yield from node.items()
    elif isinstance(node, list):
        yield from (("", child) for child in node)
