"""Make a value that a JSON schema accepts, with contents from a query.

Supported: `$ref` within the schema, `allOf`, `anyOf`, `oneOf`, `const`, `default`, `enum`, `type`,
`properties`, `required`, `items`, `minItems`, `maxItems`, the bounds of numbers, the lengths of
strings, and common formats. Other keywords are ignored, `pattern` in particular, because a client's
expression could stall the server.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import Enum
from typing import TypeVar

import jsonschema_rs

from router_service.apis.conversation import Json, as_dict, as_list

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
    "type minimum maximum exclusiveMinimum exclusiveMaximum minLength maxLength".split()
)
_BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
_EXACT = 2**53  # larger JSON numbers are not exact, so larger bounds are ignored

# No digit, letter, dash, slash or colon on either side, so that parts of dates, times and names do
# not count as numbers. 15 digits are exact as a JSON number everywhere.
_NUMBER = re.compile(r"(?<![\w.,:/-])-?\d{1,15}(?:\.\d{1,15})?(?!\w|[-:/.,]\d)")
_QUOTED = re.compile(
    r"\"([^\"\n]{1,200})\"|\u201c([^\u201d\n]{1,200})\u201d|`([^`\n]{1,200})`"
    r"|(?<!\w)'([^'\n]{1,200})'(?!\w)"
)
_NAME = re.compile(r"(?<=[^.!?\s] )[A-Z][\w-]+(?: [A-Z][\w-]+)*")

_DATE = r"\b\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1\d|2[0-8])"
_TIME = r"[01]\d:[0-5]\d:[0-5]\dZ"
_FORMATS: Mapping[str, tuple[str, str]] = {
    "date": (rf"{_DATE}\b", "2025-01-31"),
    "date-time": (f"{_DATE}T{_TIME}", "2025-01-31T12:00:00Z"),
    "time": (rf"\b{_TIME}", "12:00:00Z"),
    "email": (r"\b\w[\w.+-]{0,63}@\w[\w-]{0,63}\.[a-z]{2,20}\b", "someone@example.com"),
    "uri": (r"\bhttps?://[\w./?&=%#~-]*[\w/]", "https://example.com/"),
    "uuid": (
        r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b",
        "00000000-0000-4000-8000-000000000000",
    ),
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
        filler = _Filler(schema, query[:READ_CHARACTERS])
        return filler.value(schema, "value", frozenset(), invents=True)
    except (_UnfillableError, RecursionError):
        return {}


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

    def value(self, node: Json, name: str, references: References, *, invents: bool) -> Json:
        """Return a value for a node, or MISSING if the query has none and none may be invented.

        `references` has each `$ref` that was followed to reach the node. Raise _UnfillableError if
        the node has no finite value.
        """
        schema, references = self._resolve(node, references)
        enum = as_list(schema.get("enum"))
        default = schema.get("const", schema.get("default", MISSING))
        is_valid = "const" in schema or (
            _accepts(schema, default) and default in (enum or [default])
        )
        if default is not MISSING and is_valid:
            return default if invents else MISSING  # what is optional is better left out
        if enum:
            named = (value for value in enum if isinstance(value, str) and self._has_word(value))
            return next(named, enum[0] if invents else MISSING)
        options = _alternatives(schema)
        # First an option that the query has a value for, and then any.
        for may_invent in (False, True)[: 1 + invents] if options else ():
            for option in options:
                try:
                    found = self.value(option, name, references, invents=may_invent)
                except _UnfillableError:
                    continue
                if found is not MISSING:
                    return found
        if options and invents:
            raise _UnfillableError
        return MISSING if options else self._typed(schema, name, references, invents=invents)

    def _typed(self, schema: Schema, name: str, references: References, *, invents: bool) -> Json:
        """Return a value of a node's type, as `value` does."""
        found: Json = MISSING
        kind, form = _type_of(schema), str(schema.get("format"))
        match kind:
            case "array":
                found = self._items(schema, name, references, invents=invents)
            case "integer" | "number":
                numbers = _take(self._numbers, lambda number: _accepts(schema, number))
                edges = filter(None, (_number(schema.get(name)) for name in _BOUNDS))
                beside = (edge + step for edge in edges for step in (0, 1, -1))
                tried = (number for number in (1, 0, *beside) if _accepts(schema, number))
                number = next(tried, 1) if numbers is None and invents else numbers
                if number is not None:
                    found = int(number) if float(number).is_integer() else number
            case "object" if invents:
                found = self._object(schema, references)
            case "boolean" if invents:
                found = True
            case "null" if invents:
                found = None
            case "string" if form in _FORMATS:
                pattern, example = _FORMATS[form]
                match = re.search(pattern, self._query)
                found = match.group() if match else example if invents else MISSING
            case _ if kind == "string" or invents:
                # A quoted text, a capitalised name, or else the name of the property.
                texts = (self._quoted if kind == "string" else []), (self._names if invents else [])
                fitting = (_take(each, lambda text: _accepts(schema, text)) for each in texts)
                text = next((each for each in fitting if each is not None), None)
                least, most = _limits(schema, "minLength", "maxLength", MAX_STRING_CHARACTERS)
                invented = name.replace("_", " ")[:most].ljust(least, "x") if invents else MISSING
                found = invented if text is None else text
        return found

    def _has_word(self, value: str) -> bool:
        """Return whether the query has a text as separate words, in upper or lower case."""
        if not value or value.casefold() not in self._query.casefold():
            return False
        return bool(re.search(rf"(?<!\w){re.escape(value)}(?!\w)", self._query, re.IGNORECASE))

    def _resolve(self, node: Json, references: References) -> tuple[Schema, References]:
        """Return a node with its references followed and its `allOf` merged."""
        self._count_node()
        schema = dict(as_dict(node))
        while isinstance(reference := schema.pop("$ref", None), str):
            self._count_node()
            if reference in references:
                raise _UnfillableError
            references |= {reference}
            target = self._root if reference.startswith("#") else None
            for step in reference[1:].split("/")[1:]:
                target = as_dict(target).get(step.replace("~1", "/").replace("~0", "~"))
            schema = _merged(as_dict(target), schema)
        for part in as_list(schema.pop("allOf", None)):
            inner, references = self._resolve(part, references)
            schema = _merged(schema, inner)
        return schema, references

    def _count_node(self) -> None:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise _UnfillableError

    def _items(self, schema: Schema, name: str, references: References, *, invents: bool) -> Json:
        """Return an array of what the query has, or else of as few items as may be."""
        least, most = _limits(schema, "minItems", "maxItems", MAX_ITEMS)
        node, found = schema.get("items"), list[Json]()
        while len(found) < most and node is not False:
            is_needed = invents and len(found) < max(least, 1)
            try:
                item = self.value(node, name, references, invents=False)
                if item is MISSING and is_needed:
                    item = self.value(node, name, references, invents=True)
            except _UnfillableError:
                if invents and len(found) < least:
                    raise
                break
            # Words of an enum and texts with a format are found again each time.
            if item is MISSING or (item in found and not is_needed):
                break
            found.append(item)
        return found if invents or (found and len(found) >= least) else MISSING

    def _object(self, schema: Schema, references: References) -> dict[str, Json]:
        """Fill the required properties, then optional ones for which the query contains a value."""
        properties = as_dict(schema.get("properties"))
        required = [name for name in as_list(schema.get("required")) if isinstance(name, str)]
        values: dict[str, Json] = {
            name: self.value(properties.get(name), name, references, invents=True)
            for name in dict.fromkeys(required)
        }
        for name in properties:
            if name not in values:
                with suppress(_UnfillableError):
                    values[name] = self.value(properties[name], name, references, invents=False)
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
        both["properties"] = {**as_dict(base["properties"]), **as_dict(over["properties"])}
    if "required" in base and "required" in over:
        both["required"] = [*as_list(base["required"]), *as_list(over["required"])]
    return both


def _alternatives(schema: Schema) -> list[Schema]:
    """Return the options of `anyOf` and `oneOf`, each merged with the node; null comes last."""
    options = [*as_list(schema.get("anyOf")), *as_list(schema.get("oneOf"))]
    around = {key: value for key, value in schema.items() if key not in {"anyOf", "oneOf"}}
    found = [_merged(around, as_dict(option)) for option in options if option is not False]
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


def _number(value: Json) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) <= _EXACT else None


def _take(values: list[T], fits: Callable[[T], bool]) -> T | None:
    """Remove and return the first value that fits."""
    for index, value in enumerate(values):
        if fits(value):
            return values.pop(index)
    return None
