"""Checks whether tool calls fit their tools' schemas. Schemas come from clients and may be hostile.

A validator holds the interpreter's lock while it works and cannot be stopped. So its input is
bounded first: nothing is fetched, patterns run on an engine with linear time, and a schema whose
references multiply is not checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum

import jsonschema_rs
import orjson

from router_service.core.answers import WrittenCall
from router_service.core.cache import Cache
from router_service.core.messages import Json, as_list, unwrap_tool

MAX_SCHEMA_BYTES = 64 * 1024
MAX_WEIGHT = 4000
"""Largest schema in values, each counted as often as references lead to it. The largest tool of the
recorded benchmarks has some 200."""
MAX_DEPTH = 64
MAX_CALLS = 128
"""Calls of one answer that are checked."""
MAX_WORK = 2_500_000
"""Limit on a schema's weight times an argument's bytes, for one call: at most 25 ns for each pair,
so 0.06 s."""
MAX_TOTAL_WORK = 4 * MAX_WORK
"""The same for all calls of an answer together."""
_PATTERN_WEIGHT = 20
_FRACTION_WEIGHT = 300
"""Weight of a `multipleOf`: with fractions, 13 us for each number."""
_SIZE_BYTES = 1_300
"""Memory per unit of weight, at most: 50 patterns have a weight of 1,000 and take 1.3 MB."""
_PATTERN_OPTIONS = jsonschema_rs.RegexOptions(size_limit=64 * 1024, dfa_size_limit=64 * 1024)
"""Compiled, 50 patterns of this size take 10 ms and 1.3 MB."""
_UNCHECKED = frozenset(
    "$id $anchor $dynamicRef $dynamicAnchor $recursiveRef unevaluatedProperties "
    "unevaluatedItems".split()
)
"""Keywords that change what a reference means, or that evaluate what is beside them once more."""


class CallValidity(StrEnum):
    """Whether a call fits."""

    VALID = "yes"
    INVALID = "no"
    """The arguments break the schema, or are no JSON object."""
    UNKNOWN_TOOL = "unknown_tool"
    UNCHECKED = "unchecked"
    """The tool takes free text, or its schema is none that is checked."""


class _UncheckedError(Exception):
    """A schema that is beyond the bounds."""


def parameters_by_tool(body: Mapping[str, Json]) -> dict[str, Json]:
    """Return the schemas of a request's tools by name; None of a tool that has none."""
    functions = ({"function": entry} for entry in as_list(body.get("functions")))
    tools = (unwrap_tool(entry) for entry in (*as_list(body.get("tools")), *functions))
    return {tool["name"]: tool.get("parameters") for tool in tools if tool is not None}


class CallChecker:
    """Checks the calls of one answer, within limits on their number and their work."""

    def __init__(self, parameters: Mapping[str, Json]) -> None:
        """Check by these schemas, which `parameters_by_tool` returned."""
        self._parameters = parameters
        self._validators: dict[str, _Validator] = {}
        self._calls_left = MAX_CALLS
        self._work_left = MAX_TOTAL_WORK

    def check(self, call: WrittenCall) -> CallValidity:
        """Return whether a call fits the schema of its tool."""
        self._calls_left -= 1
        if call.name not in self._parameters:
            return CallValidity.UNKNOWN_TOOL
        if call.is_custom or self._calls_left < 0:
            return CallValidity.UNCHECKED
        arguments = call.decoded()
        if arguments is None:
            return CallValidity.INVALID
        is_free = self._parameters[call.name] is None
        return CallValidity.VALID if is_free else self._fit_schema(call, arguments)

    def _fit_schema(self, call: WrittenCall, arguments: Json) -> CallValidity:
        validator, weight = self._validator(call.name)
        work = weight * len(call.arguments)
        if validator is None or work > min(MAX_WORK, self._work_left):
            return CallValidity.UNCHECKED
        self._work_left -= work
        try:
            return CallValidity.VALID if validator.is_valid(arguments) else CallValidity.INVALID
        except ValueError:  # arguments may be nested deeper than a validator goes
            return CallValidity.UNCHECKED

    def _validator(self, name: str) -> _Validator:
        if name not in self._validators:
            self._validators[name] = _validator_of(self._parameters[name])
        return self._validators[name]


_Validator = tuple[jsonschema_rs.Draft202012Validator | None, int]
"""What validates by a schema, None if it is invalid or too large; and the schema's weight."""

_known: Cache[bytes, _Validator] = Cache(max_bytes=32 * 2**20)
"""Validators by their schemas' JSON: agents send the same tools with every turn."""


def _validator_of(schema: Json) -> _Validator:
    try:
        text = orjson.dumps(schema)
    except orjson.JSONEncodeError:
        return None, 0
    if len(text) > MAX_SCHEMA_BYTES:
        return None, 0
    known = _known.get(text)
    if known is None:
        known = _compile(orjson.loads(text))
        _known.put(text, known, len(text) + _SIZE_BYTES * known[1])
    return known


def _compile(schema: Json) -> _Validator:
    try:
        weight = _Weigher(schema).weight(schema, 0)
        validator = jsonschema_rs.Draft202012Validator(
            schema, pattern_options=_PATTERN_OPTIONS, offline=True, validate_formats=False
        )
    except (_UncheckedError, ValueError):
        return None, 0
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
        if name == "multipleOf" and isinstance(child, int | float):
            return _FRACTION_WEIGHT
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
