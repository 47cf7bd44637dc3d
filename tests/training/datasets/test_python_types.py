"""Python types as JSON Schema."""

from __future__ import annotations

import pytest

from switchcraft_training.datasets.python_syntax import read_type
from switchcraft_training.records import Json

INTEGERS = {"type": "array", "items": {"type": "integer"}}


@pytest.mark.parametrize(
    ("word", "schema"),
    [
        ("str", {"type": "string"}),
        ("int", {"type": "integer"}),
        ("float", {"type": "number"}),
        ("bool", {"type": "boolean"}),
        ("list", {"type": "array"}),
        ("List", {"type": "array"}),
        ("dict", {"type": "object"}),
        ("Any", {}),
        ("Callable", {"type": "string"}),
        ("Callable[[float], float]", {"type": "string"}),
        ("List[int]", INTEGERS),
        ("typing.List[int]", INTEGERS),
        ("List[List[int]]", {"type": "array", "items": INTEGERS}),
        (
            "List[Dict[str, Any]]",
            {"type": "array", "items": {"type": "object", "additionalProperties": {}}},
        ),
        ("Dict[str, List[int]]", {"type": "object", "additionalProperties": INTEGERS}),
        ("Set[int]", {**INTEGERS, "uniqueItems": True}),
        ("set", {"type": "array", "uniqueItems": True}),
        ("Tuple[int, int]", {**INTEGERS, "minItems": 2, "maxItems": 2}),
        ("Tuple[int, ...]", INTEGERS),
        ("tuple", {"type": "array"}),
        ("Union[int, float]", {"type": ["integer", "number"]}),
        ("List[Union[int, str]]", {"type": "array", "items": {"type": ["integer", "string"]}}),
        ("Union[List[int], int]", {"anyOf": [INTEGERS, {"type": "integer"}]}),
        ("Union[int, Any]", {}),
        ("int | None", {"type": ["integer", "null"]}),
        ("Literal['a', 'b']", {"enum": ["a", "b"]}),
    ],
)
def test_types_become_json_schema(word: str, schema: Json) -> None:
    """Each type has a schema, and none of these types is optional."""
    assert read_type(word) == (schema, False)


@pytest.mark.parametrize(
    ("word", "schema"),
    [
        ("str, optional", {"type": "string"}),
        ("List[int], optional", INTEGERS),
        (
            "Dict[str, int], Optional",
            {"type": "object", "additionalProperties": {"type": "integer"}},
        ),
        ("int, optional, default=10", {"type": "integer"}),
        ("Optional[str]", {"type": ["string", "null"]}),
        ("Optional[List[int]]", {"anyOf": [INTEGERS, {"type": "null"}]}),
    ],
)
def test_optional_types_are_recognized(word: str, schema: Json) -> None:
    """`, optional` after a type, and `Optional[...]` around it."""
    assert read_type(word) == (schema, True)


@pytest.mark.parametrize("word", ["", "strr", "List[", "List[int, str]", "Foo[int]", "int()", "3"])
def test_unknown_types_are_refused(word: str) -> None:
    """A parameter of an unknown type cannot be judged."""
    with pytest.raises(ValueError, match=r"is not a( known)? type"):
        read_type(word)
