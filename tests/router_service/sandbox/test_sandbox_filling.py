"""Values that the sandbox finds or makes up for a JSON schema."""

from typing import Any

import pytest

from router_service.apis.conversation import Json
from router_service.sandbox.filling import fill

QUERY = 'Pay 12.5 to "Ann Lee" and 3 to "Bo" in Berlin, mail ann@example.org on 2025-03-04.'


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
