"""Checks of an answer's tool calls against their schemas, and of tool results for errors.

Schemas come from clients and may be hostile. A validator holds the interpreter's lock while it
works and cannot be interrupted. So its input is limited beforehand: no remote reference is fetched,
patterns take linear time, and a schema whose references multiply its size is not checked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

import orjson

from router_service.apis.answers import WrittenCall
from router_service.apis.conversation import Json, as_list, as_text, pointer_names, unwrap_tool
from router_service.core.resources import Cache, shared_cache

if TYPE_CHECKING:
    from jsonschema_rs import Draft202012Validator

MAX_SCHEMA_BYTES = 64 * 1024
MAX_WEIGHT = 4000
"""Largest schema, in number of values. A value counts again for each reference that leads to it.
The largest tool of the recorded benchmarks has about 200 values."""
MAX_DEPTH = 64
MAX_CALLS = 128
"""Limit on the calls that are checked of one answer."""
MAX_WORK = 2_500_000
"""Limit for one call on its schema's weight times the length of its arguments. Each unit of this
product takes at most 25 ns, so the call takes at most 0.06 s."""
MAX_TOTAL_WORK = 4 * MAX_WORK
"""The same limit for all calls of an answer together."""
_PATTERN_WEIGHT = 20
_FRACTION_WEIGHT = 300
"""Weight of a `multipleOf`, which takes 13 us for each number if it is a fraction."""
_SIZE_BYTES = 1_300
"""Upper bound of memory per unit of weight: 50 patterns have a weight of 1,000 and take 1.3 MB."""
_PATTERN_BYTES = 64 * 1024
"""Largest compiled pattern. 50 patterns of this size take 10 ms and 1.3 MB."""
_UNSUPPORTED_KEYWORDS = frozenset(
    "$id $anchor $dynamicRef $dynamicAnchor $recursiveRef unevaluatedProperties "
    "unevaluatedItems".split()
)
"""Keywords that change the meaning of references, or that evaluate sibling keywords again."""


class CallValidity(StrEnum):
    """Result of checking a call. The values are labels of metrics."""

    VALID = "yes"
    INVALID = "no"
    """The arguments violate the schema, or are not a JSON object."""
    UNKNOWN_TOOL = "unknown_tool"
    UNCHECKED = "unchecked"
    """The tool takes free text, or its schema exceeds the limits."""


class _UncheckedError(Exception):
    """A schema that exceeds the limits."""


_CompiledSchema: TypeAlias = "tuple[Draft202012Validator | None, int]"
"""A validator, or None if the schema is invalid or too large, and the schema's weight."""

_compiled: Cache[bytes, _CompiledSchema] = shared_cache("schemas", max_bytes=32 * 2**20)
"""Compiled schemas by their JSON, because agents send the same tools with every turn."""


def parameters_by_tool(body: Mapping[str, Json]) -> dict[str, Json]:
    """Return the schemas of a request's tools by name, with None for tools without a schema."""
    functions = ({"function": entry} for entry in as_list(body.get("functions")))
    tools = (unwrap_tool(entry) for entry in (*as_list(body.get("tools")), *functions))
    return {tool["name"]: tool.get("parameters") for tool in tools if tool is not None}


@dataclass(slots=True)
class CallChecker:
    """Checker for the calls of one answer, with limits on their number and on the work to check."""

    parameters: Mapping[str, Json]
    """The tools' schemas, as `parameters_by_tool` returns them."""
    _schemas: dict[str, _CompiledSchema] = field(default_factory=dict)
    _calls_left: int = MAX_CALLS
    _work_left: int = MAX_TOTAL_WORK

    def check(self, call: WrittenCall) -> CallValidity:
        """Return whether a call's arguments match the schema of its tool."""
        self._calls_left -= 1
        if call.name not in self.parameters:
            return CallValidity.UNKNOWN_TOOL
        if call.is_custom or self._calls_left < 0:
            return CallValidity.UNCHECKED
        arguments = call.decoded()
        if arguments is None or self.parameters[call.name] is None:
            return CallValidity.INVALID if arguments is None else CallValidity.VALID
        if call.name not in self._schemas:
            self._schemas[call.name] = _compile(self.parameters[call.name])
        validator, weight = self._schemas[call.name]
        work = weight * len(call.arguments)
        if validator is None or work > min(MAX_WORK, self._work_left):
            return CallValidity.UNCHECKED
        self._work_left -= work
        try:
            return CallValidity.VALID if validator.is_valid(arguments) else CallValidity.INVALID
        except ValueError:  # the arguments are nested too deeply for the validator
            return CallValidity.UNCHECKED


def _compile(schema: Json) -> _CompiledSchema:
    """Return a schema's validator from the cache, or compile it."""
    # Imported with the first call that is checked: it takes 3 MB and 10 ms.
    from jsonschema_rs import Draft202012Validator, RegexOptions  # noqa: PLC0415

    try:
        text = orjson.dumps(schema)
    except orjson.JSONEncodeError:
        return None, 0
    if len(text) > MAX_SCHEMA_BYTES:
        return None, 0
    compiled = _compiled.get(text)
    if compiled is None:
        schema = orjson.loads(text)
        try:
            weight = _Weigher(schema).weigh(schema, 0)
            validator = Draft202012Validator(
                schema,
                pattern_options=RegexOptions(
                    size_limit=_PATTERN_BYTES, dfa_size_limit=_PATTERN_BYTES
                ),
                offline=True,
                validate_formats=False,
            )
            compiled = validator, weight
        except (_UncheckedError, ValueError):
            compiled = None, 0
        _compiled.put(text, compiled, len(text) + _SIZE_BYTES * compiled[1])
    return compiled


class _Weigher:
    """Counter of the values that a validator visits, including again through each reference."""

    def __init__(self, schema: Json) -> None:
        self._schema = schema
        self._targets: dict[str, int] = {}

    def weigh(self, node: Json, depth: int) -> int:
        """Return the weight of a node.

        Raise _UncheckedError if it exceeds a limit or if references form a circle.
        """
        if depth > MAX_DEPTH:
            raise _UncheckedError
        members = list(node.items()) if isinstance(node, dict) else []
        if isinstance(node, list):
            members = [("", child) for child in node]
        total = 1
        for name, child in members:
            if name in _UNSUPPORTED_KEYWORDS:
                raise _UncheckedError
            if name == "$ref" and isinstance(child, str):
                if child not in self._targets:
                    # Above the limit until the weight is known, so that a circle is an error.
                    self._targets[child] = MAX_WEIGHT + 1
                    self._targets[child] = self.weigh(self._resolve(child), depth + 1)
                total += self._targets[child]
            elif name == "pattern" and isinstance(child, str):
                total += _PATTERN_WEIGHT
            elif name == "multipleOf" and isinstance(child, int | float):
                total += _FRACTION_WEIGHT
            else:
                total += self.weigh(child, depth + 1)
                total += _PATTERN_WEIGHT * (name == "patternProperties")
        if total > MAX_WEIGHT:
            raise _UncheckedError
        return total

    def _resolve(self, reference: str) -> Json:
        """Return the target of a JSON pointer (RFC 6901) within the same document."""
        # Escapes in a URL could make the validator resolve the reference differently.
        if not reference.startswith("#") or "%" in reference:
            raise _UncheckedError
        node = self._schema
        for name in pointer_names(reference):
            if isinstance(node, dict) and name in node:
                node = node[name]
            elif isinstance(node, list) and name.isdecimal() and int(name) < len(node):
                node = node[int(name)]
            else:
                raise _UncheckedError
        return node


MAX_RESULTS = 32
"""Limit on the results that are read of a request. Agents rarely make more calls at a time."""
MAX_READ_CHARACTERS = 64 * 1024
"""Of a longer result, only this many characters are read, as text and not as JSON."""

# What frameworks send if a tool raised an exception: "Error: ...", "ValueError: ...", a traceback,
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

    All of them are new: an assistant message follows the results of earlier turns.
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

    Such a result is JSON that is marked as an error (MCP's `isError`, an `error` that is not empty,
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
