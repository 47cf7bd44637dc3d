"""JSON and Python literals inside strings, and Python types as JSON Schema."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router_service.apis.conversation import Json
from switchcraft_training.datasets.python_syntax import read_json, read_literal, read_type

INTEGERS = {"type": "array", "items": {"type": "integer"}}
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("ab'\""), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(VALUES)
def test_json_and_repr_of_every_value_are_read(value: Json) -> None:
    """Reading a value's JSON or its `repr` returns the value."""
    assert read_json(json.dumps(value)) == value
    assert read_literal(json.dumps(value)) == value
    assert read_literal(repr(value)) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{'a': true, \"b\": null, 'c': False}", {"a": True, "b": None, "c": False}),
        ('{"code": "one\ntwo"}', {"code": "one\ntwo"}),
        ("{'pair': (1, -2.5)}", {"pair": [1, -2.5]}),
        ("\n {'a': 'it\\'s'} ", {"a": "it's"}),
    ],
)
def test_mixtures_of_json_and_python_are_read(text: str, value: Json) -> None:
    """JSON constants inside Python literals, line breaks inside strings, tuples as lists."""
    assert read_literal(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "f(1)",
        "{'a': b}",
        f"{{'a': {2**70}}}",
        "(" * 500,
        '{"a": Infinity}',
        "{'a': 1e999}",
    ],
)
def test_code_and_values_without_json_are_refused(text: str) -> None:
    """Code is never executed, and values that JSON cannot represent are refused."""
    with pytest.raises((ValueError, RecursionError)):
        read_literal(text)


@pytest.mark.parametrize(
    ("text", "schema"),
    [
        ("str", {"type": "string"}),
        ("Any", {}),
        ("Callable", {"type": "string"}),
        ("List[int]", INTEGERS),
        (
            "List[Dict[str, Any]]",
            {"type": "array", "items": {"type": "object", "additionalProperties": {}}},
        ),
        ("Dict[str, List[int]]", {"type": "object", "additionalProperties": INTEGERS}),
        ("Set[int]", {**INTEGERS, "uniqueItems": True}),
        ("Tuple[int, int]", {**INTEGERS, "minItems": 2, "maxItems": 2}),
        ("Union[int, float]", {"type": ["integer", "number"]}),
        ("Union[List[int], int]", {"anyOf": [INTEGERS, {"type": "integer"}]}),
        ("int | None", {"type": ["integer", "null"]}),
        ("Literal['a', 'b']", {"enum": ["a", "b"]}),
        ("str or int", {"type": ["string", "integer"]}),
        ("list of int", INTEGERS),
        ("datetime.date", {"type": "string"}),
    ],
)
def test_types_become_json_schema(text: str, schema: Json) -> None:
    """Each type has a schema, and none of these types is optional."""
    assert read_type(text) == (schema, False)


@pytest.mark.parametrize(
    ("text", "schema"),
    [
        (
            "Dict[str, int], Optional",
            {"type": "object", "additionalProperties": {"type": "integer"}},
        ),
        ("int, optional, default=10", {"type": "integer", "default": 10}),
        ("bool = True", {"type": "boolean", "default": True}),
        ("List[int] = [1, 2]", {**INTEGERS, "default": [1, 2]}),
        ("str optional", {"type": "string"}),
        ("Optional[str]", {"type": ["string", "null"]}),
    ],
)
def test_optional_types_are_recognized(text: str, schema: Json) -> None:
    """`, optional` after a type, and `Optional[...]` around it."""
    assert read_type(text) == (schema, True)


@pytest.mark.parametrize("text", ["", "strr", "List[", "List[int, str]", "Foo[int]", "int()", "3"])
def test_unknown_types_are_refused(text: str) -> None:
    """A parameter of an unknown type cannot be judged."""
    with pytest.raises(ValueError, match=r"is not a( known)? type"):
        read_type(text)
