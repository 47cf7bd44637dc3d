"""The paper's table of acceptable variation (appendix on the AST checker), row by row."""

from __future__ import annotations

from typing import Any

import pytest

from router_service.checker.toolbox import Call, ExpectedCall
from switchcraft_training.checking import check
from switchcraft_training.records import Expected

STRING = {"type": "string"}


def tool(properties: dict[str, Any], name: str = "f") -> dict[str, Any]:
    """Return an OpenAI function tool with these parameters."""
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def accepts(properties: dict[str, Any], want: dict[str, Any], made: dict[str, Any]) -> bool:
    """Check one call, with one accepted value for each parameter."""
    expected = ExpectedCall("f", {name: (value,) for name, value in want.items()})
    return check([tool(properties)], Expected((expected,)), [Call("f", made)]).correct


def test_order_of_an_array_does_not_matter() -> None:
    """The same keywords in another order are accepted; other keywords are not."""
    keywords = {"keywords": {"type": "array", "items": STRING}, "genre": STRING}
    want = {"keywords": ["mystery", "haunted house"], "genre": "mystery"}
    assert accepts(keywords, want, {**want, "keywords": ["haunted house", "mystery"]})
    assert not accepts(keywords, want, {**want, "keywords": ["mystery", "mystery"]})


def test_parameter_with_documented_default_may_be_omitted() -> None:
    """An omitted page equals the default in the description, and no other page."""
    page = {"type": "integer", "description": "The page number. Default is `0`."}
    schema = {"limit": {"type": "integer"}, "page": page}
    assert accepts(schema, {"limit": 50, "page": 0}, {"limit": 50})
    assert not accepts(schema, {"limit": 50, "page": 1}, {"limit": 50})


@pytest.mark.parametrize(
    ("want", "made"),
    [
        ("1990-05-15T00:00:00Z", "1990-05-15T00:00:00"),
        ("1990-05-15T00:00:00Z", "1990-05-15T00:00:00+00:00"),
        ("15th June", "15 June"),
        ("office conference room", "Office conference room"),
    ],
)
def test_texts_may_be_spelled_in_several_ways(want: str, made: str) -> None:
    """A time, an ordinal and a capital may be written in more than one way."""
    assert accepts({"a": STRING}, {"a": want}, {"a": made})


CREDENTIALS = {
    "details": {
        "type": "object",
        "properties": {
            "crm": {"type": "object", "properties": {"client_id": STRING, "secret": STRING}},
            "bpm": {"type": "object", "properties": {"api_key": STRING}},
        },
    }
}


def test_nested_objects_are_compared_completely() -> None:
    """Nested objects are compared by their own schemas, to the last value."""
    want = {"details": {"crm": {"client_id": "abc", "secret": "xyz"}, "bpm": {"api_key": "k1"}}}
    other = {"details": {"crm": {"client_id": "abc", "secret": "xyz"}, "bpm": {"api_key": "k2"}}}
    assert accepts(CREDENTIALS, want, want)
    assert not accepts(CREDENTIALS, want, other)


@pytest.mark.parametrize("is_wrapped", [True, False])
def test_list_of_lists_is_a_matrix_if_items_are_arrays(is_wrapped: bool) -> None:
    """A list of lists is one matrix if the schema's items are arrays, wrapped or not."""
    rows = [[1, 2, 3, 4, 5], [2, 3, 4, 6, 7], [2, 3, 8, 9, 10]]
    schema = {"arrays": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}}
    accepted = (rows,) if is_wrapped else tuple(rows)
    expected = Expected((ExpectedCall("f", {"arrays": accepted}),))
    assert check([tool(schema)], expected, [Call("f", {"arrays": rows})]).correct
    assert not check([tool(schema)], expected, [Call("f", {"arrays": rows[0]})]).correct
    assert not check([tool(schema)], expected, [Call("f", {"arrays": rows[::-1]})]).correct


@pytest.mark.parametrize("is_wrapped", [True, False])
def test_list_of_lists_holds_alternatives_if_items_are_scalars(is_wrapped: bool) -> None:
    """A list of lists holds alternatives if the schema's items are scalars."""
    schema = {"tags": {"type": "array", "items": STRING}}
    options = (["a", "b"], ["a", "c"])
    expected = Expected((ExpectedCall("f", {"tags": ([*options],) if is_wrapped else options}),))
    assert check([tool(schema)], expected, [Call("f", {"tags": ["c", "a"]})]).correct
    assert not check([tool(schema)], expected, [Call("f", {"tags": ["b", "c"]})]).correct


def test_order_in_lists_of_objects_does_not_matter() -> None:
    """The order of objects and keys does not matter; their values do."""
    item = {"type": "object", "properties": {"course": STRING, "grade": STRING}}
    schema = {"grades": {"type": "array", "items": item}}
    want = {"grades": [{"course": "Math", "grade": "B"}, {"course": "Science", "grade": "A"}]}
    made = {"grades": [{"grade": "A", "course": "Science"}, {"grade": "B", "course": "Math"}]}
    swapped = {"grades": [{"course": "Math", "grade": "A"}, {"course": "Science", "grade": "B"}]}
    assert accepts(schema, want, made)
    assert not accepts(schema, want, swapped)
