"""Make a value that a JSON schema accepts, with contents from a query.

Supported: `$ref` within the schema, `allOf`, `anyOf`, `oneOf`, `const`, `default`, `enum`, `type`,
`properties`, `required`, `items`, `prefixItems`, `minItems`, `maxItems`, the bounds of numbers,
`multipleOf`, the lengths of strings, and common formats. Other keywords are ignored, `pattern` in
particular, because a client's expression could stall the server.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import TypeVar

import jsonschema_rs

from router_service.apis.conversation import Json

T = TypeVar("T")
Schema = Mapping[str, Json]
References = frozenset[str]

READ_CHARACTERS = 8000
"""Number of characters of a query that are read; the rest does not change the answer."""

MAX_NODES = 1000
"""Largest number of nodes to fill for one schema. Without a limit, references could double the
number of nodes at every level."""
MAX_ITEMS = 50
MAX_STRING_CHARACTERS = 10_000

_CHECKED = frozenset(
    "type minimum maximum exclusiveMinimum exclusiveMaximum multipleOf minLength maxLength".split()
)
_BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
_EXACT = 2**53  # larger JSON numbers are not exact, so larger bounds are ignored
_SMALLEST_STEP = 1e-9

# No digit, letter, dash, slash or colon on either side, so that parts of dates, times and names do
# not count as numbers. 15 digits are exact as a JSON number everywhere.
_NUMBER = re.compile(r"(?<![\w.,:/-])-?\d{1,15}(?:\.\d{1,15})?(?!\w|[-:/.,]\d)")
_QUOTED = re.compile(
    r"\"([^\"\n]{1,200})\"|\u201c([^\u201d\n]{1,200})\u201d|`([^`\n]{1,200})`"
    r"|(?<!\w)'([^'\n]{1,200})'(?!\w)"
)
_NAME = re.compile(r"(?<=[^.!?\s] )[A-Z][\w-]+(?: [A-Z][\w-]+)*")

_FORMATS: Mapping[str, tuple[re.Pattern[str], str]] = {
    name: (re.compile(pattern), example)
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
    )
}
"""Pattern of each string format in a query, and an example for queries without a match."""


class _Missing(Enum):
    """Marker for a value that was not found; None is a JSON value."""

    MISSING = "missing"


MISSING = _Missing.MISSING


class _UnfillableError(Exception):
    """A schema without a finite value within the limits."""


def fill(schema: Json, query: str) -> Json:
    """Return a value for a schema, taken from the query if possible, or `{}` if no value fits.

    Optional properties get a value only if the query contains it. The result is deterministic.
    """
    try:
        return _Filler(schema, query[:READ_CHARACTERS]).fill(schema, "value", frozenset())
    except (_UnfillableError, RecursionError):
        return {}


def _mapping(value: Json) -> Schema:
    """Return an object unchanged, and an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def _sequence(value: Json) -> Sequence[Json]:
    """Return an array unchanged, and an empty one for anything else."""
    return value if isinstance(value, list) else ()


class _Filler:
    """Filler of one schema. Each number, name and quoted text of the query is used at most once."""

    def __init__(self, root: Json, query: str) -> None:
        self._root = root
        self._query = query
        self._nodes = 0
        self._numbers: list[float] = [
            float(text) if "." in text else int(text) for text in _NUMBER.findall(query)
        ]
        self._quoted = ["".join(groups) for groups in _QUOTED.findall(query)]
        self._names: list[str] = _NAME.findall(_QUOTED.sub(" ", query))

    def fill(self, node: Json, name: str, references: References) -> Json:
        """Return a value for a node. `references` has each `$ref` that was followed to reach it.

        Raise _UnfillableError if the node has no finite value.
        """
        schema, references = self._resolve(node, references)
        enum = _sequence(schema.get("enum"))
        value = schema.get("const", MISSING)
        if value is MISSING and "default" in schema and _accepts(schema, schema["default"]):
            value = schema["default"]
            if enum and value not in enum:
                value = MISSING
        if value is MISSING:
            value = self._find(schema, references)
        if value is MISSING and enum:
            value = enum[0]
        if value is not MISSING:
            return value
        options = _alternatives(schema)
        for option in options:
            try:
                return self.fill(option, name, references)
            except _UnfillableError:
                continue
        if options:
            raise _UnfillableError
        return self._invent(schema, name, references)

    def _invent(self, schema: Schema, name: str, references: References) -> Json:
        """Return a value of the node's type, for a node whose value the query does not contain."""
        value: Json = None
        match _type_of(schema):
            case "object":
                value = self._object(schema, references)
            case "array":
                prefix = _sequence(schema.get("prefixItems")) or _sequence(schema.get("items"))
                least, most = _limits(schema, "minItems", "maxItems", MAX_ITEMS)
                value = []
                for index in range(min(most, max(least, len(prefix), 1))):
                    node = prefix[index] if index < len(prefix) else schema.get("items")
                    if node is False:
                        break
                    try:
                        value.append(self.fill(node, name, references))
                    except _UnfillableError:
                        if index < least:
                            raise
                        break
            case "integer" | "number":
                numbers = _numbers_to_try(schema)
                value = next((_exact(number) for number in numbers if _accepts(schema, number)), 1)
            case "boolean":
                value = True
            case "null":
                value = None
            case _ if str(schema.get("format")) in _FORMATS:
                value = _FORMATS[schema["format"]][1]
            case _:
                # A capitalised name from the query, or else the name of the property.
                text = _take(self._names, lambda text: _accepts(schema, text))
                least, most = _limits(schema, "minLength", "maxLength", MAX_STRING_CHARACTERS)
                value = (name.replace("_", " ") if text is None else text)[:most].ljust(least, "x")
        return value

    def _resolve(self, node: Json, references: References) -> tuple[Schema, References]:
        """Return a node with its references followed and its `allOf` merged."""
        self._count_node()
        schema = dict(_mapping(node))
        while isinstance(reference := schema.pop("$ref", None), str):
            self._count_node()
            if reference in references:
                raise _UnfillableError
            references |= {reference}
            target = self._root if reference.startswith("#") else None
            for step in reference[1:].split("/")[1:]:
                target = _mapping(target).get(step.replace("~1", "/").replace("~0", "~"))
            schema = _merged(_mapping(target), schema)
        for part in _sequence(schema.pop("allOf", None)):
            inner, references = self._resolve(part, references)
            schema = _merged(schema, inner)
        return schema, references

    def _count_node(self) -> None:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise _UnfillableError

    def _find(self, schema: Schema, references: References) -> Json:
        """Return the query's value for a resolved node, or MISSING."""
        if enum := _sequence(schema.get("enum")):
            for value in enum:  # as separate words, in upper or lower case
                if not isinstance(value, str) or value.casefold() not in self._query.casefold():
                    continue
                word = rf"(?<!\w){re.escape(value)}(?!\w)"
                if value and re.search(word, self._query, re.IGNORECASE):
                    return value
            return MISSING
        for option in _alternatives(schema):
            try:
                found = self._find(*self._resolve(option, references))
            except _UnfillableError:
                continue
            if found is not MISSING:
                return found
        match _type_of(schema):
            case "integer" | "number":
                number = _take(self._numbers, lambda value: _accepts(schema, value))
                found = MISSING if number is None else _exact(number)
            case "array":
                found = self._find_items(schema, references)
            case "string" if str(schema.get("format")) in _FORMATS:
                match = _FORMATS[schema["format"]][0].search(self._query)
                found = match.group() if match else MISSING
            case "string":
                quoted = _take(self._quoted, lambda text: _accepts(schema, text))
                found = MISSING if quoted is None else quoted
            case _:
                found = MISSING
        return found

    def _find_items(self, schema: Schema, references: References) -> Json:
        """Return an array of the query's numbers or quoted texts, or MISSING if it does not fit."""
        try:
            node, inner = self._resolve(schema.get("items"), references)
        except _UnfillableError:
            return MISSING
        is_plain = _type_of(node) in {"integer", "number", "string"} and "enum" not in node
        if "prefixItems" in schema or "format" in node or not is_plain:
            return MISSING
        least, most = _limits(schema, "minItems", "maxItems", MAX_ITEMS)
        found = [self._find(node, inner) for _ in range(most)]
        items = [item for item in found if item is not MISSING]
        return items if items and len(items) >= least else MISSING

    def _object(self, schema: Schema, references: References) -> dict[str, Json]:
        """Fill the required properties, then optional ones for which the query contains a value."""
        properties = _mapping(schema.get("properties"))
        required = [name for name in _sequence(schema.get("required")) if isinstance(name, str)]
        values: dict[str, Json] = {
            name: self.fill(properties.get(name), name, references)
            for name in dict.fromkeys(required)
        }
        for name in properties:
            if name not in values:
                try:
                    optional, inner = self._resolve(properties[name], references)
                except _UnfillableError:
                    continue
                # An optional property with a default is better left out.
                if "default" not in optional and "const" not in optional:
                    values[name] = self._find(optional, inner)
        order = dict.fromkeys([*properties, *required])
        return {n: values[n] for n in order if values.get(n, MISSING) is not MISSING}


def _accepts(schema: Schema, value: Json) -> bool:
    """Return whether a value fits a node's type, bounds and lengths; True if these are invalid."""
    try:
        return jsonschema_rs.is_valid({k: schema[k] for k in _CHECKED & schema.keys()}, value)
    except ValueError:
        return True


def _merged(base: Schema, over: Schema) -> dict[str, Json]:
    """Return two nodes merged: `over` wins, but `properties` and `required` are combined."""
    both = {**base, **over}
    if "properties" in base and "properties" in over:
        both["properties"] = {**_mapping(base["properties"]), **_mapping(over["properties"])}
    if "required" in base and "required" in over:
        both["required"] = [*_sequence(base["required"]), *_sequence(over["required"])]
    return both


def _alternatives(schema: Schema) -> list[Schema]:
    """Return the options of `anyOf` and `oneOf`, each merged with the node; null comes last."""
    options = [*_sequence(schema.get("anyOf")), *_sequence(schema.get("oneOf"))]
    around = {key: value for key, value in schema.items() if key not in {"anyOf", "oneOf"}}
    found = [_merged(around, _mapping(option)) for option in options if option is not False]
    return sorted(found, key=lambda option: option.get("type") == "null")


def _type_of(schema: Schema) -> str:
    """Return the type to fill: the first one that is not null, or one that other keywords imply."""
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((word for word in kind if word != "null"), "null")
    if isinstance(kind, str):
        return kind
    if "properties" in schema or "required" in schema:
        return "object"
    return "array" if "items" in schema else "any"


def _limits(schema: Schema, least: str, most: str, cap: int) -> tuple[int, int]:
    """Return the node's limits under the keywords `least` and `most`, each at most `cap`."""
    low, high = _number(schema.get(least)), _number(schema.get(most))
    return (
        0 if low is None else max(0, min(int(low), cap)),
        cap if high is None else max(0, min(int(high), cap)),
    )


def _numbers_to_try(schema: Schema) -> Iterator[float]:
    """Yield numbers for a node: 1, 0, and multiples of `multipleOf` at and next to its bounds."""
    step = max(_number(schema.get("multipleOf")) or 1, _SMALLEST_STEP)
    yield from (1, 0, step)
    for name in _BOUNDS:
        edge = _number(schema.get(name))
        if edge is not None:
            multiple = edge // step * step
            yield from (edge, multiple, multiple + step, multiple - step)
            yield from (edge + _SMALLEST_STEP, edge - _SMALLEST_STEP)


def _number(value: Json) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) <= _EXACT else None


def _exact(value: float) -> float:
    """Return a whole number as an integer, and any other number unchanged."""
    return int(value) if float(value).is_integer() else value


def _take(values: list[T], fits: Callable[[T], bool]) -> T | None:
    """Remove and return the first value that fits."""
    for index, value in enumerate(values):
        if fits(value):
            return values.pop(index)
    return None
