"""Functions in the leaderboard's type words -> OpenAI tools in JSON Schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from switchcraft_training.records import Json

_ANY = "any"
_TYPES = {
    "dict": "object",
    "float": "number",
    "tuple": "array",
    **{name: name for name in ("object", "number", "array", "string", "integer", "boolean")},
    "null": "null",
}
_V1_KEYWORDS = frozenset({"description", "enum", "default", "required", "format"})
_KEYWORDS = _V1_KEYWORDS | {
    *("title", "const", "examples", "pattern", "nullable"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("minLength", "maxLength", "minItems", "maxItems", "uniqueItems"),
    *("minProperties", "maxProperties"),
}
"""JSON Schema's own; the leaderboard's `optional` says again what `required` says."""

_BRANCHES = ("anyOf", "oneOf", "allOf")


@dataclass(frozen=True, slots=True)
class _Dialect:
    """How a version is converted: v1 exactly as the shipped router was trained on it.

    A Java or JavaScript type becomes `string`, with a note of what it stands for, as the
    leaderboard does when it asks a function-calling model.
    """

    version: int
    language: str | None

    def keywords(self, node: Mapping[str, Json]) -> dict[str, Json]:
        kept = _V1_KEYWORDS if self.version == 1 else _KEYWORDS
        return {key: value for key, value in node.items() if key in kept}

    def type_of(self, node: Mapping[str, Json]) -> dict[str, Json]:
        """Return the `type` entry; none where any value fits (in v1: a string)."""
        kind = node.get("type", _ANY)
        if kind == _ANY:
            return {"type": "string"} if self.version == 1 else {}
        return {"type": [_word(k) for k in kind] if isinstance(kind, list) else _word(kind)}


def to_tools(
    functions: Sequence[Mapping[str, Json]], category: str, version: int
) -> list[dict[str, Json]]:
    """Return OpenAI tools of the functions; raises ValueError for an unknown type word.

    A `.` in a name becomes `_`, as function-calling APIs take it.
    """
    dialect = _Dialect(version, language_of(category))
    return [
        {
            "type": "function",
            "function": {
                "name": function["name"].replace(".", "_"),
                "description": function.get("description", ""),
                "parameters": _object(function["parameters"], dialect),
            },
        }
        for function in functions
    ]


def language_of(category: str) -> str | None:
    """Return the programming language of a category's values; None for Python."""
    languages = {"java": "Java", "javascript": "JavaScript"}
    return languages.get(category.removeprefix("simple_"))


def _object(node: Mapping[str, Json], dialect: _Dialect) -> dict[str, Json]:
    properties = node.get("properties") or {}
    return {
        **dialect.keywords(node),
        "type": "object",
        "properties": {name: _property(child, dialect) for name, child in properties.items()},
        **dict(_nested(node, dialect)),
    }


def _property(node: Mapping[str, Json], dialect: _Dialect) -> dict[str, Json]:
    if dialect.language is not None:
        kind = node.get("type", _ANY)
        note = f"This is {dialect.language} {kind} type in string representation."
        description = f"{node.get('description', '')} {note}".strip()
        return {**dialect.keywords(node), "type": "string", "description": description}
    if dialect.type_of(node) == {"type": "object"}:
        return _object(node, dialect)
    schema = {**dialect.keywords(node), **dialect.type_of(node), **dict(_nested(node, dialect))}
    if isinstance(node.get("items"), dict):
        schema["items"] = _property(node["items"], dialect)
    return schema


def _nested(node: Mapping[str, Json], dialect: _Dialect) -> Iterator[tuple[str, Json]]:
    """Yield the parts that hold schemas and that a schema of any type may have."""
    rest = node.get("additionalProperties")
    if rest is not None:
        yield "additionalProperties", _property(rest, dialect) if isinstance(rest, dict) else rest
    for key in _BRANCHES:
        if key in node:
            yield key, [_property(branch, dialect) for branch in node[key]]


def _word(kind: str) -> str:
    if kind not in _TYPES:
        raise ValueError(f"{kind!r} is no type word that the leaderboard is known to use")
    return _TYPES[kind]
