"""Schemas of tools and answers, as stricter providers accept them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from router_service.apis.conversation import Json
from router_service.apis.schemas import (
    CLAUDES,
    OPENAIS,
    StructuredOutputs,
    object_schema,
    structured,
)

TEXT: Json = {"type": "string"}
NUMBER: Json = {"type": "number"}
REFUSED_ON_TOP = {"anyOf", "oneOf", "allOf", "not", "enum", "$ref"}


def an_object(*required: str, **properties: Json) -> dict[str, Any]:
    """Return the schema of an object."""
    return {"type": "object", "properties": properties, "required": [*required]}


CITY, PLACE = an_object("city", city=TEXT), an_object("lat", "lon", lat=NUMBER, lon=NUMBER)
EITHER = "Give the properties of one of these groups: city; lat, lon"
MERGED: dict[str, Any] = {
    "type": "object",
    "properties": {"city": TEXT, "lat": NUMBER, "lon": NUMBER},
    "description": EITHER,
}
DEFINED: dict[str, Any] = {"$defs": {"City": CITY, "Place": PLACE}}
BY_REFERENCE: list[Json] = [{"$ref": "#/$defs/City"}, {"$ref": "#/$defs/Place"}]
DOG = an_object("kind", "bark", kind={"const": "dog"}, bark=TEXT)
CAT = an_object("kind", kind={"const": "cat"}, lives=NUMBER)


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"anyOf": [CITY, PLACE]}, MERGED),
        (DEFINED | {"anyOf": BY_REFERENCE}, DEFINED | MERGED),
        (DEFINED | {"$ref": "#/$defs/City"}, DEFINED | CITY),
        (
            {"allOf": [CITY, PLACE]},
            an_object("city", "lat", "lon", city=TEXT, lat=NUMBER, lon=NUMBER),
        ),
        ({"anyOf": [{"anyOf": [CITY]}, {"type": "null"}]}, CITY),
        (
            an_object(city=TEXT, lat=NUMBER, lon=NUMBER)
            | {"anyOf": [{"required": ["city"]}, {"required": ["lat", "lon"]}]},
            MERGED | {"required": []},
        ),
        (
            {"oneOf": [DOG, CAT]},
            an_object(
                "kind",
                kind={"anyOf": [{"const": "dog"}, {"const": "cat"}]},
                bark=TEXT,
                lives=NUMBER,
            )
            | {"description": "Give the properties of one of these groups: kind, bark; kind"},
        ),
        (
            CITY | {"description": "Where.", "not": {"required": ["lat"]}, "enum": [{"city": "x"}]},
            CITY
            | {
                "description": 'Where.\n\nMust not match: {"required":["lat"]}\n\n'
                'Must be one of: [{"city":"x"}]'
            },
        ),
        ({"type": "object"}, {"type": "object", "properties": {}}),
        (None, {"type": "object", "properties": {}}),
        (
            {
                "$ref": "#/$defs/Node",
                "$defs": {"Node": {"anyOf": [CITY, {"$ref": "#/$defs/Node"}]}},
            },
            {"type": "object", "properties": {"city": TEXT}},
        ),
    ],
)
def test_properties_of_alternatives_are_on_top(schema: Json, expected: dict[str, Json]) -> None:
    """A function's schema is an object, without alternatives; what is lost is described."""
    made = object_schema(schema)
    assert REFUSED_ON_TOP.isdisjoint(made)
    assert {
        name: value for name, value in made.items() if name != "$defs" or "$defs" in expected
    } == expected


RICH: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Order",
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2, "description": "A name."},
        "code": {"type": "string", "pattern": "^[a-z]+$", "format": "slug"},
        "mail": {"type": "string", "format": "email"},
        "count": {"type": "integer", "minimum": 1, "maximum": 9, "default": 1},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 9}, "minItems": 2},
        "pair": {"type": "array", "prefixItems": [TEXT, NUMBER], "uniqueItems": True},
        "maybe": {"type": ["string", "null"], "minLength": 1},
        "level": {"type": "string", "enum": ["low", "high"]},
        "any": {"enum": [{"a": 1}, 2]},
        "animal": {"oneOf": [DOG, {"$ref": "#/$defs/Cat"}]},
        "both": {"allOf": [{"$ref": "#/$defs/Cat"}, {"description": "A cat."}]},
        "map": {"type": "object", "additionalProperties": NUMBER},
        "where": {"type": "object", "properties": {"x": NUMBER}, "anyOf": [{"required": ["x"]}]},
        "free": {},
    },
    "required": ["name"],
    "additionalProperties": False,
    "$defs": {"Cat": CAT | {"minProperties": 1}},
    "dependentRequired": {"name": ["code"]},
}

STRUCTURE = {
    "type",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "anyOf",
    "enum",
    "const",
}
STRUCTURE |= {"description", "title", "$ref", "$defs", "format", "minItems"}
ACCEPTED = {
    "claude": STRUCTURE,
    "openai": STRUCTURE | {"pattern", "minimum", "maximum", "multipleOf", "maxItems"},
}


def refused(schema: Json, accepted: set[str]) -> Iterator[str]:
    """Yield what a provider refuses in a schema that must be matched exactly."""
    assert isinstance(schema, dict), schema
    yield from sorted(schema.keys() - accepted)
    if "$ref" in schema and schema.keys() - {"$ref", "$defs"}:
        yield "$ref"
    if schema.get("type") == "object":
        if schema.get("additionalProperties") is not False:
            yield "additionalProperties"
        if not set(schema.get("required", ())) <= schema["properties"].keys():
            yield "required"
    if any(isinstance(value, (dict, list)) for value in schema.get("enum", ())):
        yield "enum"
    inner = [*schema.get("properties", {}).values(), *schema.get("$defs", {}).values()]
    inner += schema.get("anyOf", [])
    inner += [schema["items"]] if "items" in schema else []
    for each in inner:
        yield from refused(each, accepted)


def test_refused_constraints_become_descriptions() -> None:
    """Nothing is left that Anthropic or OpenAI refuses, and the descriptions say it."""
    claude, openai = structured(RICH, CLAUDES), structured(RICH, OPENAIS)
    assert [*refused(claude, ACCEPTED["claude"])] == []
    assert [*refused(openai, ACCEPTED["openai"])] == []
    fields = claude["properties"]
    assert fields["name"] == {
        "type": "string",
        "description": 'A name.\n\nConstraints: {"minLength":2}',
    }
    assert '"minimum":1,"maximum":9' in fields["count"]["description"]
    assert openai["properties"]["count"]["minimum"] == 1
    assert '"pattern":"^[a-z]+$","format":"slug"' in fields["code"]["description"]
    assert fields["mail"] == {"type": "string", "format": "email"}
    assert '{"minItems":2}' in fields["tags"]["description"]
    assert '{"maxLength":9}' in fields["tags"]["items"]["description"]
    assert fields["pair"]["items"] == {"anyOf": [TEXT, NUMBER]}
    assert [each["type"] for each in fields["maybe"]["anyOf"]] == ["string", "null"]
    assert openai["properties"]["maybe"]["type"] == ["string", "null"]
    assert fields["level"] == {"type": "string", "enum": ["low", "high"]}
    assert fields["both"]["properties"].keys() == {"kind", "lives"}
    assert "number" in fields["map"]["description"]
    assert fields["where"]["properties"] == {"x": NUMBER}
    assert '"dependentRequired":{"name":["code"]}' in claude["description"]


@pytest.mark.parametrize("accepted", [CLAUDES, OPENAIS])
@pytest.mark.parametrize(
    "schema",
    [
        {
            "$ref": "#/$defs/A0",
            "$defs": {f"A{i}": {"anyOf": [{"$ref": f"#/$defs/A{i + 1}"}] * 2} for i in range(60)},
        },
        {
            "$defs": {
                f"A{i}": {
                    "properties": {
                        side: {"properties": {"x": TEXT}, "anyOf": [{"$ref": f"#/$defs/A{i + 1}"}]}
                        for side in "lr"
                    }
                }
                for i in range(60)
            },
            "allOf": [{"$ref": "#/$defs/A0"}],
        },
        {"allOf": [{"$ref": "#"}, {"$ref": "#/allOf/0"}, {"allOf": [{"$ref": "#/allOf/2"}]}]},
        {"type": "object", "properties": [], "required": {}, "anyOf": {}, "enum": [], "$defs": 5},
        orjson.loads('{"items":' * 230 + "{}" + "}" * 230),
    ],
)
def test_strange_schemas_take_little_time(schema: Json, accepted: StructuredOutputs) -> None:
    """Recursive schemas, and values that are not schemas, are written as JSON."""
    orjson.dumps(object_schema(schema))
    orjson.dumps(structured(schema, accepted))
