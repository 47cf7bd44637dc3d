"""JSON and Python literals inside strings."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchcraft_training.datasets.python_syntax import read_json, read_literal, read_objects
from switchcraft_training.records import Json

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


@given(
    st.lists(VALUES.map(lambda value: {"v": value}), max_size=4), st.sampled_from(["", "\n", ", "])
)
def test_consecutive_objects_are_read(values: list[Json], between: str) -> None:
    """The objects may be separated by white space, commas, or not at all."""
    assert list(read_objects(between.join(json.dumps(v, indent=2) for v in values))) == values


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
        "{1: 2}",
        "{'a': 1 << 3}",
        f"{{'a': {2**70}}}",
        "(" * 500,
        "{1, 2}",
    ],
)
def test_code_and_values_without_json_are_refused(text: str) -> None:
    """Code is never executed, and values that JSON cannot represent are refused."""
    with pytest.raises((ValueError, RecursionError)):
        read_literal(text)
