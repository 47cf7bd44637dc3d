"""A JSON schema and a query -> a value that the schema accepts.

Honoured: `$ref` within the schema, `allOf`, `anyOf`, `oneOf`, `const`, `default`, `enum`, `type`,
`properties`, `required`, `items`, `prefixItems`, `minItems`, `maxItems`, the bounds of numbers,
`multipleOf`, the lengths of strings, and the usual formats. Everything else is passed over:
`pattern` above all, because a client's expression could stall the server.
"""

from __future__ import annotations

from enum import Enum

from router_service.core.messages import Json
from router_service.sandbox import schemas
from router_service.sandbox.clues import Clues
from router_service.sandbox.schemas import Schema, mapping, sequence

MAX_NODES = 2000
"""A schema that asks for more values is given up: references can double at every level."""

MAX_DEPTH = 64


class _Missing(Enum):
    """What a search that found nothing returns; None is a JSON value."""

    MISSING = "missing"


MISSING = _Missing.MISSING


class _UnfillableError(Exception):
    """A schema for which no finite value is found."""


def fill(schema: Json, query: str) -> Json:
    """Return a value for a schema, with what the query offers; `{}` where none is found.

    Optional properties are filled only with what stands in the query. The same input always has
    the same answer.
    """
    try:
        return _Filler(schema, Clues(query)).fill(schema, "value")
    except (_UnfillableError, RecursionError):
        # A reference to itself without an end, or a chain of references longer than the stack.
        return {}


class _Filler:
    """Fills one schema; `root` is what its references start from."""

    def __init__(self, root: Json, clues: Clues) -> None:
        self._root = root
        self._clues = clues
        self._nodes = 0
        self._depth = 0
        self._open: list[str] = []

    def fill(self, node: Json, name: str) -> Json:
        """Return a value for a node; raises _UnfillableError where it has no finite one."""
        return self._visit(node, name)

    def find(self, node: Json) -> Json:
        """Return the query's value for a node, or MISSING."""
        try:
            return self._visit(node, None)
        except _UnfillableError:
            return MISSING

    def _visit(self, node: Json, name: str | None) -> Json:
        """Fill a node, or without a name only search for it, with its references held open."""
        mark = len(self._open)
        self._nodes += 1
        self._depth += 1
        try:
            if self._nodes > MAX_NODES or self._depth > MAX_DEPTH:
                raise _UnfillableError
            schema = self._flat(node)
            return self._find(schema) if name is None else self._fill(schema, name)
        finally:
            self._depth -= 1
            del self._open[mark:]

    def _flat(self, node: Json) -> Schema:
        """Return a node with its references followed and its `allOf` merged."""
        if isinstance(node, dict) and "$ref" not in node and "allOf" not in node:
            return node
        schema = dict(mapping(node))
        reference = schema.pop("$ref", None)
        if isinstance(reference, str):
            if reference in self._open:
                raise _UnfillableError
            self._open.append(reference)
            schema = schemas.merged(self._flat(schemas.pointed(self._root, reference)), schema)
        for part in sequence(schema.pop("allOf", None)):
            schema = schemas.merged(schema, self._flat(part))
        return schema

    def _fill(self, schema: Schema, name: str) -> Json:
        # An array is not searched for here: its search would use values up that are too few.
        is_array = schemas.type_of(schema) == "array"
        for value in (_given(schema), MISSING if is_array else self._find(schema)):
            if value is not MISSING:
                return value
        if enum := sequence(schema.get("enum")):
            return enum[0]
        if options := schemas.alternatives(schema):
            return self._first_of(options, name)
        return self._make(schema, name)

    def _make(self, schema: Schema, name: str) -> Json:
        match schemas.type_of(schema):
            case "object":
                return self._object(schema)
            case "array":
                return self._array(schema, name)
            case "integer" | "number":
                return schemas.some_number(schema)
            case "boolean":
                return True
            case "null":
                return None
            case _:
                return self._string(schema, name)

    def _find(self, schema: Schema) -> Json:
        if _given(schema) is not MISSING:
            return MISSING  # an optional property with a default is better left to it
        if enum := sequence(schema.get("enum")):
            return next((value for value in enum if self._clues.mentions(value)), MISSING)
        if options := schemas.alternatives(schema):
            found = (self.find(option) for option in options)
            return next((value for value in found if value is not MISSING), MISSING)
        return self._search(schema)

    def _search(self, schema: Schema) -> Json:
        match schemas.type_of(schema):
            case "integer" | "number":
                return self._find_number(schema)
            case "string":
                return self._find_string(schema)
            case "array":
                return self._find_array(schema)
            case _:
                return MISSING

    def _first_of(self, options: list[Schema], name: str) -> Json:
        for option in options:
            try:
                return self.fill(option, name)
            except _UnfillableError:
                continue
        raise _UnfillableError

    def _object(self, schema: Schema) -> dict[str, Json]:
        """Fill the required properties before the others take what the query offers."""
        properties = mapping(schema.get("properties"))
        required = [name for name in sequence(schema.get("required")) if isinstance(name, str)]
        values = {name: self.fill(properties.get(name), name) for name in dict.fromkeys(required)}
        for name in properties:
            if name not in values:
                values[name] = self.find(properties[name])
        order = dict.fromkeys([*properties, *required])
        return {name: values[name] for name in order if values[name] is not MISSING}

    def _array(self, schema: Schema, name: str) -> list[Json]:
        least, most = schemas.item_bounds(schema)
        wanted = min(most, max(least, len(schemas.tuple_items(schema)), 1))
        items = self._find_items(schema)
        while len(items) < wanted and (node := schemas.item(schema, len(items))) is not False:
            try:
                items.append(self.fill(node, name))
            except _UnfillableError:
                if len(items) < least:
                    raise
                break
        return items

    def _find_array(self, schema: Schema) -> Json:
        items = self._find_items(schema)
        least = schemas.item_bounds(schema)[0]
        return items if items and len(items) >= least else MISSING

    def _find_items(self, schema: Schema) -> list[Json]:
        """Return what the query has for an array, as far as it gives each value only once."""
        items: list[Json] = []
        while len(items) < schemas.item_bounds(schema)[1]:
            node = mapping(schemas.item(schema, len(items)))
            if "enum" in node or schemas.format_of(node) is not None:
                break
            if schemas.type_of(node) not in {"integer", "number", "string"}:
                break
            found = self.find(node)
            if found is MISSING:
                break
            items.append(found)
        return items

    def _find_number(self, schema: Schema) -> Json:
        value = self._clues.take_number(lambda number: schemas.accepts_number(schema, number))
        if value is None:
            return MISSING
        return int(value) if schemas.type_of(schema) == "integer" else value

    def _find_string(self, schema: Schema) -> Json:
        known = schemas.format_of(schema)
        if known is not None:
            match = known.pattern.search(self._clues.text)
            return match.group() if match else MISSING
        value = self._clues.take_quoted(lambda text: schemas.accepts_length(schema, text))
        return MISSING if value is None else value

    def _string(self, schema: Schema, name: str) -> str:
        """Make a string up: its format's example, a name in the query, or the property's own."""
        known = schemas.format_of(schema)
        if known is not None:
            return known.example
        found = self._clues.take_name(lambda text: schemas.accepts_length(schema, text))
        least, most = schemas.length_bounds(schema)
        text = name.replace("_", " ") if found is None else found
        return text[:most].ljust(least, "x")


def _given(schema: Schema) -> Json:
    """Return what the schema itself gives: its `const`, or its `default` where that fits it."""
    if "const" in schema:
        return schema["const"]
    value = schema.get("default", MISSING)
    if value is MISSING or not schemas.is_of_type(schema, value):
        return MISSING
    enum = sequence(schema.get("enum"))
    return value if not enum or value in enum else MISSING
