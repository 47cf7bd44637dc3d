"""JSON Schema -> the nodes that signatures and features read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from router_service.core.errors import InvalidRequestError
from router_service.core.messages.body import Json, items_of, text_of
from router_service.core.messages.values import Parameter, Schema

MAX_SCHEMA_DEPTH = 64
"""Deeper schemas are refused. The deepest tool among the recorded benchmarks has 5 levels."""

_COMPOSITIONS = ("anyOf", "oneOf", "allOf")
_ANYTHING = Schema()


def parse_schema(node: Json, path: str, depth: int = 0) -> Schema:
    """Read a JSON-Schema node; raises InvalidRequestError below `MAX_SCHEMA_DEPTH` levels."""
    if depth > MAX_SCHEMA_DEPTH:
        raise InvalidRequestError(
            f"The schema at '{path}' is nested more than {MAX_SCHEMA_DEPTH} levels deep. "
            "Flatten it, or move the inner part behind a '$ref'.",
            param=path,
            code="schema_too_deep",
        )
    if not isinstance(node, dict) or not node:
        return _ANYTHING
    items = node.get("items")
    is_composed = not node.keys().isdisjoint(_COMPOSITIONS)
    return Schema(
        type=_type_word(node),
        description=text_of(node.get("description")),
        enum=tuple(map(str, items_of(node.get("enum")))),
        has_default="default" in node,
        properties=tuple(_read_properties(node, path, depth)) if "properties" in node else (),
        items=parse_schema(items, path, depth + 1) if isinstance(items, dict) else None,
        alternatives=tuple(_read_alternatives(node, path, depth)) if is_composed else (),
    )


def _read_properties(node: Mapping[str, Json], path: str, depth: int) -> Iterator[Parameter]:
    properties = node.get("properties")
    required = {name for name in items_of(node.get("required")) if isinstance(name, str)}
    for name, child in properties.items() if isinstance(properties, dict) else ():
        yield Parameter(name, parse_schema(child, path, depth + 1), name in required)


def _read_alternatives(node: Mapping[str, Json], path: str, depth: int) -> Iterator[Schema]:
    for keyword in _COMPOSITIONS:
        for child in items_of(node.get(keyword)):
            yield parse_schema(child, path, depth + 1)


def _type_word(node: Mapping[str, Json]) -> str:
    """Return the node's type in one word: its `type`, the name of its `$ref`, or `any`."""
    kind = node.get("type")
    if isinstance(kind, str):
        return kind
    if isinstance(kind, list):
        return "|".join(word for word in kind if isinstance(word, str))
    reference = node.get("$ref")
    if isinstance(reference, str):
        return reference.rsplit("/", 1)[-1]
    return "object" if "properties" in node else "any"
