"""Reads JSON-Schema nodes that may hold anything, and judges numbers and strings by them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from router_service.core.messages import Json

Schema = Mapping[str, Json]
"""A node whose references have been followed."""

MAX_ITEMS = 50
MAX_STRING_CHARACTERS = 10_000
_EXACT = 2**53  # beyond it, JSON numbers are not exact, and bounds are passed over
_FINEST_STEP = 1e-9


@dataclass(frozen=True, slots=True)
class Format:
    """A string format: how it looks within a text, and a value where the text has none."""

    pattern: re.Pattern[str]
    example: str


_FORMATS: Mapping[str, Format] = {
    name: Format(re.compile(pattern), example)
    for name, pattern, example in (
        ("date", r"\b\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1\d|2[0-8])\b", "2025-01-31"),
        (
            "date-time",
            r"\b\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1\d|2[0-8])T[01]\d:[0-5]\d:[0-5]\dZ",
            "2025-01-31T12:00:00Z",
        ),
        ("time", r"\b[01]\d:[0-5]\d:[0-5]\dZ", "12:00:00Z"),
        ("email", r"\b\w[\w.+-]{0,63}@\w[\w-]{0,63}\.[a-z]{2,20}\b", "someone@example.com"),
        ("uri", r"\bhttps?://[\w./?&=%#~-]*[\w/]", "https://example.com/"),
        (
            "uuid",
            r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b",
            "00000000-0000-4000-8000-000000000000",
        ),
        ("ipv4", r"\b(?:(?:1?\d)?\d\.){3}(?:1?\d)?\d\b", "192.0.2.1"),
        ("ipv6", r"\b2001:db8::[0-9a-f]{1,4}\b", "2001:db8::1"),
        ("hostname", r"\b(?:[a-z0-9]{1,63}\.){1,5}[a-z]{2,20}\b", "example.com"),
    )
}


def mapping(value: Json) -> Mapping[str, Json]:
    """Return an object as it is, and anything else as an empty one."""
    return value if isinstance(value, dict) else {}


def sequence(value: Json) -> Sequence[Json]:
    """Return an array as it is, and anything else as an empty one."""
    return value if isinstance(value, list) else ()


def merged(base: Schema, over: Schema) -> dict[str, Json]:
    """Return both nodes as one; where they differ `over` wins, and what they require adds up."""
    both = {**base, **over}
    if "properties" in base and "properties" in over:
        both["properties"] = {**mapping(base["properties"]), **mapping(over["properties"])}
    if "required" in base and "required" in over:
        both["required"] = [*sequence(base["required"]), *sequence(over["required"])]
    return both


def pointed(root: Json, reference: str) -> Json:
    """Follow a reference within `root` (`#/$defs/Place`); anything that leads nowhere is None."""
    node = root if reference.startswith("#") else None
    for step in reference[1:].split("/")[1:]:
        node = mapping(node).get(step.replace("~1", "/").replace("~0", "~"))
    return node


def alternatives(schema: Schema) -> list[Schema]:
    """Return what `anyOf` and `oneOf` offer, each with the node around it; null comes last."""
    around = {key: value for key, value in schema.items() if key not in {"anyOf", "oneOf"}}
    options = [*sequence(schema.get("anyOf")), *sequence(schema.get("oneOf"))]
    found = [merged(around, mapping(option)) for option in options if option is not False]
    return sorted(found, key=lambda option: option.get("type") == "null")


def type_of(schema: Schema) -> str:
    """Return the one type to fill a node with: the first that is not null, or what it implies."""
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((word for word in kind if word != "null"), "null")
    if isinstance(kind, str):
        return kind
    if "properties" in schema or "required" in schema:
        return "object"
    return "array" if "items" in schema else "any"


def is_of_type(schema: Schema, value: Json) -> bool:
    """Tell whether a value is of the type, or one of the types, that a node asks for."""
    kinds = schema.get("type")
    if kinds is None:
        return True
    return any(_is(kind, value) for kind in (kinds if isinstance(kinds, list) else [kinds]))


def _is(kind: Json, value: Json) -> bool:
    """Tell whether a value is of one type; an unknown type is anything's."""
    if kind == "integer":
        return _number(value) is not None and float(value).is_integer()
    if isinstance(value, bool):
        return kind not in _TYPES or kind == "boolean"
    return not isinstance(kind, str) or isinstance(value, _TYPES.get(kind, object))


_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
    "string": str,
    "array": list,
    "object": dict,
}


def item(schema: Schema, index: int) -> Json:
    """Return the node of an array's item; False where the array has no more of them."""
    prefix = tuple_items(schema)
    if index < len(prefix):
        return prefix[index]
    after = schema.get("items")
    return schema.get("additionalItems") if isinstance(after, list) else after


def tuple_items(schema: Schema) -> Sequence[Json]:
    """Return the nodes of the items that have one each, old style (`items`) or new."""
    return sequence(schema.get("prefixItems")) or sequence(schema.get("items"))


def item_bounds(schema: Schema) -> tuple[int, int]:
    """Return the least and the greatest number of items, at most `MAX_ITEMS`."""
    return _bounds(schema, "minItems", "maxItems", MAX_ITEMS)


def length_bounds(schema: Schema) -> tuple[int, int]:
    """Return the least and the greatest length in characters."""
    return _bounds(schema, "minLength", "maxLength", MAX_STRING_CHARACTERS)


def _bounds(schema: Schema, least: str, most: str, cap: int) -> tuple[int, int]:
    low, high = _number(schema.get(least)), _number(schema.get(most))
    return (
        0 if low is None else max(0, min(int(low), cap)),
        cap if high is None else max(0, min(int(high), cap)),
    )


def accepts_length(schema: Schema, text: str) -> bool:
    """Tell whether a string is neither too short nor too long."""
    least, most = length_bounds(schema)
    return least <= len(text) <= most


def format_of(schema: Schema) -> Format | None:
    """Return the string format of a node, where it is a known one."""
    name = schema.get("format")
    return _FORMATS.get(name) if isinstance(name, str) else None


def accepts_number(schema: Schema, value: float) -> bool:
    """Tell whether a number is within a node's type, bounds and steps."""
    if type_of(schema) == "integer" and not float(value).is_integer():
        return False
    step = _step(schema)
    if step is not None and abs(value / step - round(value / step)) > _FINEST_STEP:
        return False
    low, high = _number(schema.get("minimum")), _number(schema.get("maximum"))
    above, below = _exclusive(schema, "exclusiveMinimum"), _exclusive(schema, "exclusiveMaximum")
    return (
        (low is None or value >= low)
        and (high is None or value <= high)
        and (above is None or value > above)
        and (below is None or value < below)
    )


def some_number(schema: Schema) -> float:
    """Return a number that a node accepts, 1 where it may be; 1 too where none is found."""
    whole = type_of(schema) == "integer"
    for value in _candidates(schema):
        if accepts_number(schema, value):
            return int(value) if whole or float(value).is_integer() else value
    return 1


def _candidates(schema: Schema) -> Iterator[float]:
    """Yield 1, 0, and what lies at, near and between the bounds."""
    yield from (1, 0)
    names = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
    edges = [edge for edge in (_number(schema.get(name)) for name in names) if edge is not None]
    if not edges:
        edges = [0.0]
    step = _step(schema) or 1.0
    for edge in edges:
        base = math.floor(edge / step)
        yield from ((base + offset) * step for offset in (0, 1, 2, -1))
        yield from (edge, edge + _FINEST_STEP, edge - _FINEST_STEP)
    yield (min(edges) + max(edges)) / 2


def _exclusive(schema: Schema, name: str) -> float | None:
    """Return an exclusive bound, also where it is a switch beside the inclusive one (draft 4)."""
    if schema.get(name) is True:
        return _number(schema.get("minimum" if name == "exclusiveMinimum" else "maximum"))
    return _number(schema.get(name))


def _step(schema: Schema) -> float | None:
    step = _number(schema.get("multipleOf"))
    return step if step is not None and step >= _FINEST_STEP else None


def _number(value: Json) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) <= _EXACT else None
