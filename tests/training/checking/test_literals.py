"""Values in texts: Java and JavaScript literals, and defaults in descriptions."""

from __future__ import annotations

from typing import Any

import pytest

from router_service.apis.conversation import Json
from router_service.checker.defaults import documented_defaults
from router_service.checker.literals import parse_literal
from router_service.checker.parameter_schema import Schema


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('new ArrayList<>(Arrays.asList("a", 2L))', ["a", 2]),
        ("new int[] {1, 2}", [1, 2]),
        ('new HashMap<String, Object>() {{ put("a", 1); put("b", true); }}', {"a": 1, "b": True}),
        ('Map.of("a", 0.5f)', {"a": 0.5}),
        ("{limit=50, schema=public}", {"limit": 50, "schema": "public"}),
        ("{a: [1, {b: null}]}", {"a": [1, {"b": None}]}),
        (r"[{\"a\": 1}]", [{"a": 1}]),
        ("5n", 5),
        ("1_000", 1000),
        (r"'it\'s'", "it's"),
        ("new Point(1, 2)", "Point(1, 2)"),
        ("new P(new int[]{1}, {k: 'v'})", "P([1], {k: v})"),
        ("Integer.valueOf(5)", 5),
        ("2024-01-02", "2024-01-02"),
        ("[1, 2", "[1, 2"),
        ("new HashMap<>() {{ get(1) }}", "new HashMap<>() {{ get(1) }}"),
        ("", ""),
    ],
)
def test_literal_is_parsed_to_its_value(text: str, value: Json) -> None:
    """Collections, maps, boxes and numbers become values; anything else stays text."""
    assert parse_literal(text) == value


@pytest.mark.parametrize(
    ("schema", "default"),
    [
        ({"type": "integer", "default": 0, "description": "Default is 5"}, 0),
        ({"type": "integer", "description": "Page. Default is `0`"}, 0),
        ({"type": "integer", "description": "Page number (default: 10)."}, 10),
        ({"type": "number", "description": "Gravity, defaults to -9.81."}, -9.81),
        ({"type": "boolean", "description": "Full name. Default is false."}, False),
        ({"type": "boolean", "description": "Default value is True"}, True),
        ({"type": "string", "description": "The unit of measure (defaults to 'units')"}, "units"),
        ({"type": "string", "description": "Currency, default USD."}, "USD"),
        ({"type": "string", "description": 'Default to "New York"'}, "New York"),
        ({"type": "array", "description": "Default is [1, 2]"}, [1, 2]),
        ({"type": "object", "description": "Options. Default is {}"}, {}),
        ({"type": "integer", "description": "Limit; default none"}, None),
    ],
)
def test_default_is_parsed_as_the_schema_type(schema: dict[str, Any], default: object) -> None:
    """The `default` keyword wins over the description; the value has the schema's type."""
    values = documented_defaults(Schema(schema))
    assert default in values
    assert type(values[values.index(default)]) is type(default)
