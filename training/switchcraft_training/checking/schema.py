"""A parameter's schema as the checker reads it: JSON Schema, and BFCL's own type words.

Every part is read when it is first asked for, so recursive schemas are no special case and what
no argument touches costs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from typing import Final

from router_service.core.errors import SchemaError
from switchcraft_training.records import Json


class Kind(StrEnum):
    """What a value may be."""

    STRING = "string"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    ARRAY = "array"
    OBJECT = "object"
    NULL = "null"


_WORDS: Mapping[Kind, str] = {
    Kind.STRING: "string str char character text",
    Kind.INTEGER: "integer int long short byte bigint",
    Kind.NUMBER: "number float double",
    Kind.BOOLEAN: "boolean bool",
    Kind.ARRAY: "array arraylist list linkedlist tuple set hashset queue stack",
    Kind.OBJECT: "object dict hashmap hashtable map",
    Kind.NULL: "null none",
}
KINDS: Final = {word: kind for kind, words in _WORDS.items() for word in words.split()}
"""JSON Schema's type words, BFCL's, Python's, Java's and JavaScript's, in lower case."""

_ANY_WORDS: Final = frozenset({"any", ""})
_ANY: Final[frozenset[Kind]] = frozenset()

_FOREIGN_TYPES: Final = frozenset(
    "Array ArrayList Bigint Boolean HashMap Hashtable Object Queue Set Stack String "
    "byte char double long short".split()
)
"""Type words of Java and JavaScript alone."""

_FOREIGN_NOTE = re.compile(r"\bThis is (?:Java|JavaScript) (\w+) type in string representation")
_ORDER_NOTE = re.compile(
    r"\b(?:coordinates?|coefficients?|latitude|longitude"
    r"|order matters|ordered list|in (?:this|the) order)\b",
    re.IGNORECASE,
)


class Schema:
    """One node of a schema. Raises SchemaError where a part that is read cannot be interpreted."""

    def __init__(self, node: Json, root: Json = None) -> None:
        self._raw = node
        self._root = node if root is None else root

    @cached_property
    def _node(self) -> Mapping[str, Json]:
        return {} if self._raw is True else self._resolved(_an_object(self._raw), ())

    def _resolved(self, node: Mapping[str, Json], seen: tuple[Json, ...]) -> Mapping[str, Json]:
        """Return the node with `$ref` followed and `allOf` merged; `seen`: what led here."""
        while "$ref" in node:
            reference = node["$ref"]
            if reference in seen:
                raise SchemaError(f"{reference!r} refers to itself")
            seen = (*seen, reference)
            rest = {key: value for key, value in node.items() if key != "$ref"}
            node = {**self._pointed_to(reference), **rest}
        parts = node.get("allOf")
        if not parts:
            return node
        own = {key: value for key, value in node.items() if key != "allOf"}
        return _merged([*(self._resolved(_an_object(part), seen) for part in parts), own])

    def _pointed_to(self, reference: Json) -> Mapping[str, Json]:
        """Follow a JSON pointer into the tool's own parameters (RFC 6901)."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise SchemaError(f"$ref {reference!r} points outside of the tool's parameters")
        target: Json = self._root
        for step in reference[1:].split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(target, dict) or key not in target:
                raise SchemaError(f"$ref {reference!r} points at nothing")
            target = target[key]
        return _an_object(target)

    def _child(self, node: Json) -> Schema:
        return Schema(node, self._root)

    @cached_property
    def description(self) -> str:
        """The description; empty where there is none."""
        return str(self._node.get("description") or "")

    @cached_property
    def kinds(self) -> frozenset[Kind]:
        """What a value may be; empty: anything."""
        if self.branches:
            each = [branch.kinds for branch in self.branches]
            return _ANY if _ANY in each else frozenset().union(*each)
        return self._own_kinds()

    def _own_kinds(self) -> frozenset[Kind]:
        if "type" not in self._node:
            return frozenset({Kind.OBJECT}) if "properties" in self._node else _ANY
        words = self._node["type"]
        kinds = [_kind(word) for word in (words if isinstance(words, list) else [words])]
        if self._node.get("nullable") is True:
            kinds.append(Kind.NULL)
        return _ANY if None in kinds else frozenset(kind for kind in kinds if kind)

    @cached_property
    def branches(self) -> tuple[Schema, ...]:
        """The alternatives of `anyOf` or `oneOf`, each with what stands beside them."""
        parts = self._node.get("anyOf") or self._node.get("oneOf")
        if not parts:
            return ()
        if not isinstance(parts, list):
            raise SchemaError("anyOf and oneOf hold a list of schemas")
        beside = {k: v for k, v in self._node.items() if k not in {"anyOf", "oneOf"}}
        return tuple(
            self._child(_merged([beside, self._resolved(_an_object(part), ())])) for part in parts
        )

    @cached_property
    def members(self) -> tuple[Json, ...]:
        """The values of `enum` or `const`; empty where any value of the type will do."""
        if self.branches:
            each = [branch.members for branch in self.branches if branch.kinds != {Kind.NULL}]
            return tuple(member for members in each for member in members) if all(each) else ()
        if "const" in self._node:
            return (self._node["const"],)
        members = self._node.get("enum") or ()
        if not isinstance(members, list | tuple):
            raise SchemaError(f"an enum is a list, not {str(members)[:80]!r}")
        return tuple(members)

    @cached_property
    def properties(self) -> Mapping[str, Schema]:
        """The named keys of an object."""
        nodes = self._node.get("properties") or {}
        return {name: self._child(node) for name, node in _an_object(nodes).items()}

    @cached_property
    def required(self) -> frozenset[str]:
        """The keys that an object must have."""
        names = self._node.get("required") or ()
        return frozenset(names) if isinstance(names, list | tuple) else frozenset()

    def key(self, name: str) -> Schema:
        """Return the schema of an object's key, named or not."""
        found = self.properties.get(name)
        if found is not None:
            return found
        patterns = self._node.get("patternProperties")
        for pattern, node in _an_object(patterns).items() if patterns else ():
            if _regex(pattern).search(name):
                return self._child(node)
        extra = self._node.get("additionalProperties")
        return self._child(extra) if isinstance(extra, dict) else ANYTHING

    @cached_property
    def items(self) -> Schema:
        """The schema of an array's items."""
        node = self._node.get("items")
        return self._child(node) if isinstance(node, dict) else ANYTHING

    @cached_property
    def prefix(self) -> tuple[Schema, ...]:
        """The schemas of an array's first items, where each has its own."""
        nodes = self._node.get("prefixItems")
        if nodes is None and isinstance(self._node.get("items"), list):
            nodes = self._node["items"]  # before draft 2020-12
        return tuple(self._child(node) for node in nodes or ())

    @cached_property
    def is_ordered(self) -> bool:
        """Whether the order of an array says something: coordinates, tuples, ordered lists."""
        is_tuple = bool(self.prefix) or str(self._node.get("type")).casefold() == "tuple"
        return is_tuple or bool(_ORDER_NOTE.search(self.description))

    @property
    def own_default(self) -> Mapping[str, Json]:
        """`{"default": value}` where the schema has one."""
        return {"default": self._node["default"]} if "default" in self._node else {}

    @cached_property
    def foreign(self) -> Schema | None:
        """What a string stands for where it holds a Java or JavaScript literal."""
        note = _FOREIGN_NOTE.search(self.description)
        word = note[1] if note else self._node.get("type")
        if not isinstance(word, str) or (note is None and word not in _FOREIGN_TYPES):
            return None
        rest = {k: v for k, v in self._node.items() if k in {"items", "enum"}}
        rest["description"] = _FOREIGN_NOTE.sub("", self.description)
        return self._child({**rest, "type": KINDS.get(word.casefold(), "any")})

    def takes(self, kind: Kind) -> bool:
        """Tell whether a value of this kind is allowed."""
        return not self.kinds or kind in self.kinds


ANYTHING: Final = Schema({})


def _known(word: str) -> bool:
    return word.casefold() in KINDS or word.casefold() in _ANY_WORDS


def _kind(word: Json) -> Kind | None:
    """Return what a type word means, None for anything."""
    if not isinstance(word, str) or not _known(word):
        raise SchemaError(f"the type {str(word)[:80]!r} is not known")
    return KINDS.get(word.casefold())


def _regex(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as exc:
        raise SchemaError(f"{pattern!r} is not a regular expression: {exc}") from exc


def _an_object(value: Json) -> Mapping[str, Json]:
    if not isinstance(value, dict):
        raise SchemaError(f"a schema is an object, not {str(value)[:80]!r}")
    return value


def _merged(parts: Sequence[Mapping[str, Json]]) -> dict[str, Json]:
    """Merge schemas that all hold: later keywords win, properties and requirements add up."""
    merged: dict[str, Json] = {}
    for part in parts:
        for key, value in part.items():
            if key == "properties":
                merged[key] = {**merged.get(key, {}), **_an_object(value)}
            elif key == "required" and isinstance(value, list):
                merged[key] = [*merged.get(key, ()), *value]
            else:
                merged[key] = value
    return merged
