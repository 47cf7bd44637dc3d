"""Values that the sandbox finds or makes up for a JSON schema."""

from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router_service.apis.conversation import Json
from router_service.sandbox.filling import fill

QUERY = 'Pay 12.5 to "Ann Lee" and 3 to "Bo" in Berlin, mail ann@example.org on 2025-03-04.'


NAMES = st.sampled_from(["city", "to", "count", "user_name", "\u00e9", ""])


def bounded(low: str, high: str, most: int) -> st.SearchStrategy[dict[str, int]]:
    """Draw a least and a greatest number, in order."""
    pair = st.tuples(st.integers(0, most), st.integers(0, most))
    return pair.map(lambda both: {low: min(both), high: max(both)})


@st.composite
def numbers(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a schema of numbers that has at least one whole number between its bounds."""
    low = draw(st.integers(-1000, 1000))
    schema: dict[str, Any] = {"type": draw(st.sampled_from(["integer", "number"]))}
    schema |= draw(st.sampled_from([{}, {"minimum": low}, {"exclusiveMinimum": low}]))
    schema |= draw(st.sampled_from([{}, {"maximum": low + 2}]))
    return schema


def nested(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """Draw objects, arrays and choices of what `inner` draws."""
    objects = st.builds(
        lambda properties, count: {
            "type": "object",
            "properties": properties,
            "required": list(properties)[:count],
            "additionalProperties": False,
        },
        st.dictionaries(NAMES, inner, max_size=4),
        st.integers(0, 4),
    )
    arrays = st.builds(
        lambda items, count: {"type": "array", "items": items} | count,
        inner,
        bounded("minItems", "maxItems", 4),
    )
    return objects | arrays | st.lists(inner, min_size=1, max_size=3).map(lambda o: {"anyOf": o})


ENUMS = st.lists(st.sampled_from(["Berlin", "x", "Bo"]), min_size=1, unique=True)
STRINGS = bounded("minLength", "maxLength", 30).map(lambda length: {"type": "string"} | length)
LEAVES = (
    numbers()
    | STRINGS
    | STRINGS.map(lambda schema: schema | {"type": ["null", "string"]})
    | ENUMS.map(lambda e: {"type": "string", "enum": e, "minLength": 0, "maxLength": 9})
    | st.sampled_from([{"type": "boolean"}, {"type": "null"}])
)


@settings(max_examples=300)
@given(st.recursive(LEAVES, nested, max_leaves=8), st.sampled_from([QUERY, "", "7 -2.0 'a' 900"]))
def test_filled_values_are_valid(schema: dict[str, Any], query: str) -> None:
    """The value matches the schema, and a second call returns the same value."""
    value = fill(schema, query)
    jsonschema.validate(value, schema)
    assert fill(schema, query) == value


KEYWORDS = (
    "type properties required items prefixItems enum const default anyOf allOf oneOf $ref $defs a "
    "minimum maximum exclusiveMinimum exclusiveMaximum multipleOf minItems maxItems minLength "
    "maxLength format"
).split()
WORDS = ["object", "array", "number", "integer", "string", "#", "#/$defs/a", "date"]
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False)
    | st.sampled_from(WORDS)
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYWORDS), inner, max_size=5)
    ),
    max_leaves=15,
)


@settings(max_examples=300)
@given(ANYTHING)
def test_unusable_schemas_never_fail(schema: Json) -> None:
    """Schemas of any shape, including references to themselves, get a value."""
    fill(schema, QUERY)
    fill({"type": "object", "properties": {"a": schema}, "required": ["a"]}, QUERY)


def properties(required: list[str] | None = None, /, **schemas: Json) -> dict[str, Any]:
    """Return an object schema; everything is required unless told otherwise."""
    names = list(schemas) if required is None else required
    return {"type": "object", "properties": schemas, "required": names}


TEXT = {"type": "string"}
NUMBER = {"type": "number"}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (properties(a=NUMBER, b={"type": "integer"}), {"a": 12.5, "b": 3}),
        (properties(a=TEXT, b=TEXT, place=TEXT), {"a": "Ann Lee", "b": "Bo", "place": "Berlin"}),
        (properties(["b"], a=NUMBER, b=NUMBER), {"a": 3, "b": 12.5}),
        (properties([], a=NUMBER, b=NUMBER, c=NUMBER, d={}), {"a": 12.5, "b": 3}),
        (properties([], to=TEXT | {"format": "email"}), {"to": "ann@example.org"}),
        (properties(day=TEXT | {"format": "date"}), {"day": "2025-03-04"}),
        (properties([], to={"type": "array", "items": TEXT}), {"to": ["Ann Lee", "Bo"]}),
        (properties([], place=TEXT | {"enum": ["rome", "berlin"]}), {"place": "berlin"}),
        (properties(place=TEXT | {"enum": ["rome", "oslo"]}), {"place": "rome"}),
        (properties([], place=TEXT | {"enum": ["rome", "oslo"]}), {}),
        (properties(a=NUMBER | {"default": 5}), {"a": 5}),
        (properties([], a=NUMBER | {"default": 5}), {}),
        (properties(a=NUMBER | {"default": "wrong"}), {"a": 12.5}),
        (properties(a={"const": [1]}), {"a": [1]}),
        (properties(a={"anyOf": [{"type": "null"}, NUMBER]}), {"a": 12.5}),
        (properties(a={"type": ["null", "boolean"]}), {"a": True}),
        (properties(["a"]), {"a": "Berlin"}),
    ],
)
def test_values_come_from_the_query_if_they_fit(schema: Json, value: Json) -> None:
    """Numbers, quoted strings, names and formats are used where their types fit."""
    assert fill(schema, QUERY) == value
