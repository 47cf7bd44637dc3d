"""Java and JavaScript literals."""

from __future__ import annotations

import pytest

from router_service.apis.conversation import Json
from router_service.checker.literals import parse_literal


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
