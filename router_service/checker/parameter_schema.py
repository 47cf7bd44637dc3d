"""JSON Schema of a parameter, extended by the type words of BFCL and programming languages.

Each part is read on first use. Recursive schemas therefore need no special case, and parts that no
argument uses cost nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from typing import Final

from router_service.apis.conversation import Json, pointer_names
from router_service.core.errors import SchemaError


class JsonType(StrEnum):
    """Type of a JSON value."""

    STRING = "string"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    ARRAY = "array"
    OBJECT = "object"
    NULL = "null"


_WORDS_BY_TYPE: Mapping[JsonType, str] = {
    JsonType.STRING: "string str char character text",
    JsonType.INTEGER: "integer int long short byte bigint",
    JsonType.NUMBER: "number float double",
    JsonType.BOOLEAN: "boolean bool",
    JsonType.ARRAY: "array arraylist list linkedlist tuple set hashset queue stack",
    JsonType.OBJECT: "object dict hashmap hashtable map",
    JsonType.NULL: "null none",
}
TYPE_WORDS: Final = {
    word: json_type for json_type, words in _WORDS_BY_TYPE.items() for word in words.split()
}
"""Type words of JSON Schema, BFCL, Python, Java and JavaScript, in lower case."""

_ANY_TYPE_WORDS: Final = frozenset({"any", ""})
_ANY_TYPE: Final[frozenset[JsonType]] = frozenset()

_FOREIGN_TYPES: Final = frozenset(
    "Array ArrayList Bigint Boolean HashMap Hashtable Object Queue Set Stack String "
    "byte char double long short".split()
)
"""Type words that only Java and JavaScript use."""

_FOREIGN_NOTE = re.compile(r"\bThis is (?:Java|JavaScript) (\w+) type in string representation")
_ORDER_NOTE = re.compile(
    r"\b(?:coordinates?|coefficients?|latitude|longitude"
    r"|order matters|ordered list|in (?:this|the) order)\b",
    re.IGNORECASE,
)


class Schema:
    """One node of a schema.

    Every property raises SchemaError if the part that it reads cannot be interpreted.
    """

    def __init__(self, node: Json, root: Json = None) -> None:
        self._raw = node
        self._root = node if root is None else root

    @cached_property
    def _node(self) -> Mapping[str, Json]:
        return {} if self._raw is True else self._resolve(_require_object(self._raw), ())

    def _resolve(self, node: Mapping[str, Json], seen: tuple[Json, ...]) -> Mapping[str, Json]:
        """Return the node with its `$ref`s followed and its `allOf` merged.

        `seen` contains the references that led to the node, so that a cycle is detected.
        """
        while "$ref" in node:
            reference = node["$ref"]
            if reference in seen:
                raise SchemaError(f"$ref {reference!r} refers to itself")
            seen = (*seen, reference)
            rest = {key: value for key, value in node.items() if key != "$ref"}
            # A reference is a JSON pointer into the tool's parameters (RFC 6901).
            if not isinstance(reference, str) or not reference.startswith("#"):
                raise SchemaError(f"$ref {reference!r} points outside the tool's parameters")
            target: Json = self._root
            for key in pointer_names(reference):
                if not isinstance(target, dict) or key not in target:
                    raise SchemaError(f"$ref {reference!r} points to a place that does not exist")
                target = target[key]
            node = {**_require_object(target), **rest}
        parts = node.get("allOf")
        if not parts:
            return node
        if not isinstance(parts, list):
            raise SchemaError("allOf must be a list of schemas")
        own = {key: value for key, value in node.items() if key != "allOf"}
        return _merge([*(self._resolve(_require_object(part), seen) for part in parts), own])

    def _child(self, node: Json) -> Schema:
        return Schema(node, self._root)

    @cached_property
    def description(self) -> str:
        """Return the description, or an empty string."""
        return str(self._node.get("description") or "")

    @property
    def format(self) -> str:
        """Return the format of a string, such as `uuid`, or an empty string."""
        form = self._node.get("format")
        return form if isinstance(form, str) else ""

    @cached_property
    def types(self) -> frozenset[JsonType]:
        """Return the allowed types; an empty set allows any type."""
        if self.branches:
            each = [branch.types for branch in self.branches]
            return _ANY_TYPE if _ANY_TYPE in each else frozenset().union(*each)
        if "type" not in self._node:
            return frozenset({JsonType.OBJECT}) if "properties" in self._node else _ANY_TYPE
        words = self._node["type"]
        types = {JsonType.NULL} if self._node.get("nullable") is True else set()
        allows_any = False
        for word in words if isinstance(words, list) else [words]:
            if isinstance(word, str) and word.casefold() in TYPE_WORDS:
                types.add(TYPE_WORDS[word.casefold()])
            elif isinstance(word, str) and word.casefold() in _ANY_TYPE_WORDS:
                allows_any = True
            else:
                raise SchemaError(f"unknown type {str(word)[:80]!r}")
        return _ANY_TYPE if allows_any else frozenset(types)

    @cached_property
    def branches(self) -> tuple[Schema, ...]:
        """Return the alternatives of `anyOf` or `oneOf`, merged with the keywords beside them."""
        parts = self._node.get("anyOf") or self._node.get("oneOf")
        if not parts:
            return ()
        if not isinstance(parts, list):
            raise SchemaError("anyOf and oneOf must be lists of schemas")
        beside = {k: v for k, v in self._node.items() if k not in {"anyOf", "oneOf"}}
        return tuple(
            self._child(_merge([beside, self._resolve(_require_object(part), ())]))
            for part in parts
        )

    @cached_property
    def members(self) -> tuple[Json, ...]:
        """Return the values of `enum` or `const`; empty if the schema has neither."""
        if self.branches:
            each = [branch.members for branch in self.branches if branch.types != {JsonType.NULL}]
            return tuple(member for members in each for member in members) if all(each) else ()
        if "const" in self._node:
            return (self._node["const"],)
        members = self._node.get("enum") or ()
        if not isinstance(members, (list, tuple)):
            raise SchemaError(f"an enum must be a list, not {str(members)[:80]!r}")
        return tuple(members)

    @cached_property
    def properties(self) -> Mapping[str, Schema]:
        """Return the schemas of an object's named keys."""
        nodes = self._node.get("properties") or {}
        return {name: self._child(node) for name, node in _require_object(nodes).items()}

    @cached_property
    def required(self) -> frozenset[str]:
        """Return the keys that an object must have."""
        names = self._node.get("required")
        if not isinstance(names, (list, tuple)):
            return frozenset()
        return frozenset(name for name in names if isinstance(name, str))

    def key(self, name: str) -> Schema:
        """Return the schema of an object's key; `ANY_SCHEMA` if no keyword describes the key."""
        found = self.properties.get(name)
        if found is not None:
            return found
        patterns = self._node.get("patternProperties")
        for pattern, node in _require_object(patterns).items() if patterns else ():
            try:
                matches = re.search(pattern, name)
            except re.error as exc:
                raise SchemaError(f"{pattern!r} is not a regular expression: {exc}") from exc
            if matches:
                return self._child(node)
        extra = self._node.get("additionalProperties")
        return self._child(extra) if isinstance(extra, dict) else ANY_SCHEMA

    @cached_property
    def items(self) -> Schema:
        """Return the schema of an array's items."""
        node = self._node.get("items")
        return self._child(node) if isinstance(node, dict) else ANY_SCHEMA

    @cached_property
    def prefix(self) -> tuple[Schema, ...]:
        """Return the schemas of an array's first items, if the schema lists them one by one."""
        nodes = self._node.get("prefixItems")
        if nodes is None and isinstance(self._node.get("items"), list):
            nodes = self._node["items"]  # The form before draft 2020-12.
        if nodes is not None and not isinstance(nodes, (list, tuple)):
            raise SchemaError("prefixItems must be a list of schemas")
        return tuple(self._child(node) for node in nodes or ())

    @cached_property
    def is_ordered(self) -> bool:
        """Return whether an array's order matters: tuples, coordinates and ordered lists."""
        is_tuple = bool(self.prefix) or str(self._node.get("type")).casefold() == "tuple"
        return is_tuple or bool(_ORDER_NOTE.search(self.description))

    @property
    def own_default(self) -> Mapping[str, Json]:
        """Return `{"default": value}` if the schema has a default, else an empty mapping."""
        return {"default": self._node["default"]} if "default" in self._node else {}

    @cached_property
    def foreign(self) -> Schema | None:
        """Return the schema of the Java or JavaScript literal that a string holds, if any."""
        note = _FOREIGN_NOTE.search(self.description)
        word = note[1] if note else self._node.get("type")
        if not isinstance(word, str) or (note is None and word not in _FOREIGN_TYPES):
            return None
        rest = {k: v for k, v in self._node.items() if k in {"items", "enum"}}
        rest["description"] = _FOREIGN_NOTE.sub("", self.description)
        return self._child({**rest, "type": TYPE_WORDS.get(word.casefold(), "any")})

    def allows(self, json_type: JsonType) -> bool:
        """Return whether a value of this type is allowed."""
        return not self.types or json_type in self.types


ANY_SCHEMA: Final = Schema({})


def _require_object(value: Json) -> Mapping[str, Json]:
    if not isinstance(value, dict):
        raise SchemaError(f"a schema must be an object, not {str(value)[:80]!r}")
    return value


def _merge(parts: Sequence[Mapping[str, Json]]) -> dict[str, Json]:
    """Merge schemas that must all match.

    A later keyword replaces an earlier one, except that `properties` and `required` are united.
    """
    merged: dict[str, Json] = {}
    for part in parts:
        for key, value in part.items():
            if key == "properties":
                merged[key] = {**merged.get(key, {}), **_require_object(value)}
            elif key == "required" and isinstance(value, list):
                merged[key] = [*merged.get(key, ()), *value]
            elif key != "required":  # Another value of `required` is ignored.
                merged[key] = value
    return merged
