"""JSON schemas of tools and answers as stricter providers accept them.

What a provider refuses becomes a part of the description, so that the model may still follow it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from router_service.apis.conversation import Json, as_dict, as_list, as_text, pointer_names
from router_service.apis.encoding import UnwritableError, encode, fits_inside

Schema = dict[str, Any]

_REFUSED_ON_TOP = frozenset({"$ref", "anyOf", "oneOf", "allOf", "not", "enum"})
"""Keywords that OpenAI and Anthropic refuse at the top of a function's schema, where both want the
type `object`."""

_DEFINITIONS = ("$defs", "definitions")

_MAX_MERGED_LEVELS = 30
_MAX_WRITTEN_LEVELS = 64
_MAX_STEPS = 5_000
"""Limits on the levels of schemas that are merged into one or rewritten, and on the schemas and
properties that are visited. Definitions that refer to each other repeat without end. What exceeds
the limits is sent as it is."""

_KEYWORDS_BY_TYPE = {
    "object": frozenset(
        "properties required additionalProperties patternProperties propertyNames minProperties "
        "maxProperties dependentRequired".split()
    ),
    "array": frozenset(
        "items prefixItems additionalItems contains minItems maxItems uniqueItems".split()
    ),
    "string": frozenset("minLength maxLength pattern format".split()),
    "number": frozenset("minimum maximum exclusiveMinimum exclusiveMaximum multipleOf".split()),
}
"""Keywords that concern values of only one type. Integers have those of numbers."""

_OF_OTHER_TYPES = frozenset(("enum", "const")).union(
    *(words for kind, words in _KEYWORDS_BY_TYPE.items() if kind != "object")
)


@dataclass(frozen=True, slots=True)
class StructuredOutputs:
    """What a provider accepts in a schema that its model has to match exactly."""

    keywords: frozenset[str]
    """Keywords besides those of the structure, which every provider accepts."""
    formats: frozenset[str]
    max_min_items: float = float("inf")
    """Largest `minItems`."""
    takes_types: bool = True
    """Whether `type` may be a list."""


_FORMATS = frozenset("date-time time date duration email hostname ipv4 ipv6 uuid".split())

CLAUDES = StructuredOutputs(
    keywords=frozenset({"title"}),
    formats=_FORMATS | {"uri"},
    max_min_items=1,
    takes_types=False,
)
"""Anthropic: "Structured outputs", limitations, and `transform_schema` of its client for Python.
Amazon Bedrock accepts the same."""

OPENAIS = StructuredOutputs(
    keywords=frozenset(
        "title pattern minimum maximum exclusiveMinimum exclusiveMaximum multipleOf "
        "maxItems".split()
    ),
    formats=_FORMATS,
)
"""OpenAI: "Structured outputs", supported schemas."""


def object_schema(schema: Json) -> Schema:
    """Return a function's schema with the type `object` and its properties on top.

    The properties of alternatives are merged. Those that all alternatives require stay required.
    """
    top: Schema = as_dict(schema)
    if _REFUSED_ON_TOP.isdisjoint(top) and top.get("type", "object") == "object":
        # Some servers of MCP write null for what a tool does not have.
        top = {name: value for name, value in top.items() if value is not None}
        return {"type": "object", "properties": {}, **top}
    try:
        merged = _Merging(top).merge(top)
    except UnwritableError:
        merged = {}
    return merged if merged and fits_inside(merged) else {"type": "object", "properties": {}}


def structured(schema: Json, accepted: StructuredOutputs) -> Schema:
    """Return a schema as a provider accepts it if the model has to match it exactly."""
    top: Schema = as_dict(schema)
    try:
        written = _Writer(top, accepted).write(top)
    except UnwritableError:
        return top
    return written if fits_inside(written) else top


class _Merging:
    """Merges the alternatives of a schema into one object. Each definition is merged once."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._merged: dict[str, Schema] = {}
        self.steps = 0

    def merge(self, schema: Schema, level: int = 0) -> Schema:
        """Return a schema as one object."""
        notes: list[str] = []
        merged = {name: value for name, value in schema.items() if name not in _REFUSED_ON_TOP}
        merged |= {"type": "object", "properties": dict(as_dict(merged.get("properties")))}
        self.steps += 1 + len(merged["properties"])
        if level < _MAX_MERGED_LEVELS and self.steps < _MAX_STEPS:
            parts = [self.part(each, level) for each in as_list(schema.get("allOf"))]
            if isinstance(schema.get("$ref"), str):
                parts.append(self.part({"$ref": schema["$ref"]}, level))
            for part in parts:
                _add_all(merged, part)
            for keyword in ("anyOf", "oneOf"):
                branches = [as_dict(each) for each in as_list(schema.get(keyword))]
                objects = [each for each in branches if self.matches_objects(each)]
                notes += _add_any(merged, [self.part(each, level) for each in objects])
        for keyword, words in (("not", "Must not match"), ("enum", "Must be one of")):
            if keyword in schema:
                notes.append(f"{words}: {encode(schema[keyword]).decode()}")
        return _described(merged, notes)

    def resolve(self, schema: Schema) -> Schema:
        """Return the definition that a schema refers to, or the schema itself without one."""
        for _ in range(_MAX_MERGED_LEVELS):
            reference = schema.get("$ref")
            if not isinstance(reference, str) or not reference.startswith("#/"):
                return schema
            found: Json = self._root
            for name in pointer_names(reference):
                found = as_dict(found).get(name)
            schema = as_dict(found)
        return {}

    def part(self, schema: Json, level: int) -> Schema:
        """Return one of the schemas that are merged, as one object."""
        part = as_dict(schema)
        reference = part.get("$ref")
        if not isinstance(reference, str):
            return self.merge(part, level + 1)
        if reference not in self._merged:
            self._merged[reference] = {}  # a definition that contains itself adds nothing
            self._merged[reference] = self.merge(self.resolve(part), level + 1)
        self.steps += len(as_dict(self._merged[reference].get("properties")))
        return self._merged[reference]

    def matches_objects(self, schema: Schema) -> bool:
        """Return whether objects match a schema, as far as it says."""
        resolved = self.resolve(schema)
        kind = resolved.get("type")
        if kind is None:
            return _OF_OTHER_TYPES.isdisjoint(resolved)
        return kind == "object" or "object" in as_list(kind)


def _add_all(merged: Schema, part: Schema) -> None:
    """Add a schema that applies too."""
    properties = merged["properties"]
    for name, value in as_dict(part.get("properties")).items():
        known = properties.setdefault(name, value)
        if known != value:
            properties[name] = {**as_dict(value), **as_dict(known)}
    required = _texts((*as_list(merged.get("required")), *as_list(part.get("required"))))
    if required:
        merged["required"] = required
    for name, value in part.items():
        if name != "additionalProperties":  # it does not know the other schema's properties
            merged.setdefault(name, value)


def _add_any(merged: Schema, branches: list[Schema]) -> list[str]:
    """Add schemas of which one applies; return what is lost, in words."""
    if not branches:
        return []
    own = frozenset(merged["properties"])
    options: dict[str, dict[bytes, Json]] = {}
    for branch in branches:
        for name, value in as_dict(branch.get("properties")).items():
            options.setdefault(name, {})[encode(value)] = value
    for name, found in options.items():
        if name not in own:
            values = [*found.values()]
            merged["properties"][name] = values[0] if len(values) == 1 else {"anyOf": values}
    wanted = [_texts(as_list(branch.get("required"))) for branch in branches]
    common = frozenset(wanted[0]).intersection(*wanted[1:])
    required = _texts((*as_list(merged.get("required")), *(n for n in wanted[0] if n in common)))
    if required:
        merged["required"] = required
    if all(branch.get("additionalProperties") is False for branch in branches):
        merged.setdefault("additionalProperties", False)
    names = dict.fromkeys(
        ", ".join(each or as_dict(branch.get("properties")))
        for each, branch in zip(wanted, branches, strict=True)
    )
    if len(names) < 2 or "" in names:
        return []
    return [f"Give the properties of one of these groups: {'; '.join(names)}"]


class _Writer:
    """Writes one schema as a provider accepts it."""

    def __init__(self, root: Schema, accepted: StructuredOutputs) -> None:
        self._merging = _Merging(root)
        self._accepted = accepted

    def write(self, schema: Json, level: int = 0) -> Schema:
        """Return a schema, or a schema within it."""
        left = dict(as_dict(schema))
        written: Schema = {}
        self._merging.steps += 1
        if level > _MAX_WRITTEN_LEVELS or self._merging.steps > _MAX_STEPS:
            return left
        for name in _DEFINITIONS:
            if name in left:
                definitions = as_dict(left.pop(name))
                written[name] = {n: self.write(value, level) for n, value in definitions.items()}
        if "$ref" in left:  # nothing may be beside it
            return written | {"$ref": left["$ref"]}
        for each in as_list(left.pop("allOf", None)):
            part = self._merging.resolve(as_dict(each))
            if self._merging.matches_objects(part):
                part = self._merging.part(each, 0)
            left["properties"] = dict(as_dict(left.get("properties")))
            _add_all(left, part)
        if not left.get("properties", True) and left.get("type") != "object":
            del left["properties"]
        has_choice = "anyOf" in left or "oneOf" in left
        if has_choice and left.get("properties"):
            left = self._merging.merge(left)
        for name in ("$schema", "$id", "$comment"):
            left.pop(name, None)
        if isinstance(description := left.pop("description", None), str):
            written["description"] = description
        written |= {n: left.pop(n) for n in self._accepted.keywords if n in left}
        self._write_values(left, written, level + 1)
        notes = [f"Constraints: {encode(left).decode()}"] if left else []
        return _described(written, notes)

    def _write_values(self, left: Schema, written: Schema, level: int) -> None:
        """Move from `left` to `written` what says which values match."""
        kind = left.pop("type", "object" if "properties" in left else None)
        kinds = kind if isinstance(kind, list) and kind else [kind]
        for name in ("enum", "const"):
            values = as_list(left.get(name)) if name == "enum" else [left.get(name)]
            if name in left and values and not any(isinstance(v, (list, dict)) for v in values):
                written[name] = left.pop(name)
        for name in ("anyOf", "oneOf"):
            if isinstance(left.get(name), list) and "anyOf" not in written:
                written["anyOf"] = [self.write(each, level) for each in left.pop(name)]
        is_literal = "enum" in written or "const" in written
        if len(kinds) > 1 and not self._accepted.takes_types:
            if not (is_literal or "anyOf" in written):
                variants = [_variant(left, each) for each in kinds]
                written["anyOf"] = [self.write(variant, level) for variant in variants]
                left.clear()
            return
        if kind is not None:
            written["type"] = kind if len(kinds) > 1 else kinds[0]
        if "object" in kinds:
            self._write_object(left, written, level)
        if "array" in kinds:
            self._write_array(left, written, level)
        if as_text(left.get("format")) in self._accepted.formats:
            written["format"] = left.pop("format")

    def _write_object(self, left: Schema, written: Schema, level: int) -> None:
        properties = as_dict(left.pop("properties", None))
        written["properties"] = {n: self.write(value, level) for n, value in properties.items()}
        wanted = _texts(as_list(left.pop("required", None)))
        if required := [name for name in wanted if name in properties]:
            written["required"] = required
        written["additionalProperties"] = False
        if isinstance(left.get("additionalProperties"), bool):
            del left["additionalProperties"]

    def _write_array(self, left: Schema, written: Schema, level: int) -> None:
        items, first = left.pop("items", None), as_list(left.get("prefixItems"))
        found = [*first, *(items if isinstance(items, list) else [items])]
        choices = [self.write(each, level) for each in found if isinstance(each, dict)]
        if choices:
            written["items"] = choices[0] if len(choices) == 1 else {"anyOf": choices}
        least = left.get("minItems")
        if isinstance(least, int) and least <= self._accepted.max_min_items:
            written["minItems"] = left.pop("minItems")


def _described(schema: Schema, notes: Iterable[str]) -> Schema:
    """Return a schema with notes at the end of its description."""
    texts = [text for text in (schema.get("description"), *notes) if isinstance(text, str) and text]
    return {**schema, "description": "\n\n".join(texts)} if texts else schema


def _variant(schema: Schema, kind: Json) -> Schema:
    """Return a schema for values of one type, without the keywords for values of others."""
    own = "number" if kind == "integer" else kind
    others = [words for each, words in _KEYWORDS_BY_TYPE.items() if each != own]
    dropped = frozenset().union(*others)
    return {**{n: value for n, value in schema.items() if n not in dropped}, "type": kind}


def _texts(values: Iterable[Json]) -> list[str]:
    """Return the strings among values, each once."""
    return [*dict.fromkeys(value for value in values if isinstance(value, str))]
