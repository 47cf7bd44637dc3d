"""JSON Schema keywords and type words, tested through the verdicts that depend on them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router_service.apis.conversation import Json
from router_service.checker.toolbox import Call, ExpectedCall
from router_service.core.errors import SchemaError
from switchcraft_training.checking import check
from switchcraft_training.records import Expected

ADDRESS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TREE = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}},
    },
}


def judge(parameters: Json, want: Json, made: Json) -> list[tuple[str, str]]:
    """Check `f(a=made)` against the accepted value `want`; return codes and paths."""
    function = {"name": "f", "parameters": parameters}
    expected = Expected((ExpectedCall("f", {"a": (want,)}),))
    verdict = check(
        [{"type": "function", "function": function}], expected, [Call("f", {"a": made})]
    )
    return [(error.code.value, error.path) for error in verdict.errors]


def parameters_with(schema: Json, **rest: Json) -> dict[str, Json]:
    """Return the schema of parameters in which `a` has this schema."""
    return {"type": "object", "properties": {"a": schema}, **rest}


@pytest.mark.parametrize(
    ("schema", "want", "same", "other"),
    [
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "Oslo", "oslo", "Rome"),
        ({"anyOf": [{"type": "integer"}, ADDRESS]}, {"city": "Oslo"}, {"city": "OSLO"}, 7),
        ({"oneOf": [{"type": "array", "items": {"type": "integer"}}]}, [1, 2], [2, 1], [1, 1]),
        ({"$ref": "#/$defs/address"}, {"city": "Oslo"}, {"city": "oslo"}, {"city": "Rome"}),
        (
            {"$ref": "#/$defs/tree"},
            {"name": "a", "children": [{"name": "b"}, {"name": "c"}]},
            {"children": [{"name": "C"}, {"name": "B"}], "name": "A"},
            {"name": "a", "children": [{"name": "b"}, {"name": "d"}]},
        ),
        ({"allOf": [ADDRESS, {"properties": {"n": {"type": "integer", "default": 1}}}]},
         {"city": "Oslo", "n": 1}, {"city": "Oslo"}, {"n": 1}),
        ({"type": ["string", "null"]}, None, None, "none"),
        ({"enum": ["asc", "desc"]}, "asc", "ASC", "desc"),
        ({"enum": [1, 2]}, 1, 1, 2),
        ({"const": "v1"}, "v1", "V1", "v2"),
        ({"type": "object", "additionalProperties": {"type": "array", "items": {"type": "string"}}},
         {"k": ["x", "y"]}, {"k": ["y", "x"]}, {"k": ["x"]}),
        ({"type": "array", "prefixItems": [{"type": "number"}, {"type": "number"}]},
         [59.9, 10.7], [59.9, 10.7], [10.7, 59.9]),
        ({"type": "tuple", "items": {"type": "float"}}, [1.0, 2.0], [1, 2], [2, 1]),
        ({"type": "array", "items": {"type": "number"}, "description": "[lat, lon] coordinates"},
         [1, 2], [1.0, 2.0], [2, 1]),
        ({"type": "dict", "properties": {"x": {"type": "float"}}}, {"x": 1.0}, {"x": 1}, {"x": 2}),
        ({"type": "any"}, "x", "X", 5),
        ({"type": "HashMap"}, {"k": 1}, "{k: 1}", "{k: 2}"),
        ({"type": "ArrayList"}, ["a", "b"], 'new ArrayList<>(List.of("b", "a"))', '["a"]'),
        ({"type": "Bigint"}, 5, "5n", "6n"),
    ],
)  # fmt: skip
def test_schema_decides_which_values_are_equal(
    schema: Json, want: Json, same: Json, other: Json
) -> None:
    """For each keyword, a value that it makes equal is accepted, and another is not."""
    parameters = parameters_with(schema, **{"$defs": {"address": ADDRESS, "tree": TREE}})
    assert judge(parameters, want, same) == []
    assert judge(parameters, want, other) != []


def test_null_equals_omission_only_if_nullable_and_optional() -> None:
    """A null stands for an omitted parameter only if it is nullable and not required."""
    nullable: dict[str, Any] = {
        "type": "object",
        "properties": {"a": {"type": ["integer", "null"]}, "b": {}},
    }
    function = {"type": "function", "function": {"name": "f", "parameters": nullable}}
    nothing = Expected((ExpectedCall("f", {}),))
    null = Expected((ExpectedCall("f", {"a": (None,)}),))
    assert check([function], nothing, [Call("f", {"a": None})]).correct
    assert not check([function], nothing, [Call("f", {"b": None})]).correct
    assert check([function], null, [Call("f", {})]).correct
    nullable["required"] = ["a"]
    assert not check([function], null, [Call("f", {})]).correct


def test_list_is_a_choice_if_the_schema_allows_no_array() -> None:
    """If the schema allows no array, a list holds alternatives; `""` makes the key optional."""
    schema = parameters_with(
        {"type": "dict", "properties": {"to": {"type": "string"}, "tags": {"type": "array"}}}
    )
    want = {"to": ["Oslo", "OSL", ""], "tags": ["x", "y"]}
    assert judge(schema, want, {"to": "osl", "tags": ["y", "x"]}) == []
    assert judge(schema, want, {"tags": ["x", "y"]}) == []
    assert judge(schema, want, {"to": "Rome", "tags": ["x", "y"]}) != []
    assert judge(schema, want, {"to": "Oslo", "tags": ["x"]}) != []


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "quaternion"}, 1),
        ({"$ref": "#/$defs/nowhere"}, 1),
        ({"$ref": "https://example.com/schema.json"}, 1),
        ({"$ref": "#/properties/a"}, 1),
        ({"anyOf": {"type": "string"}}, 1),
        ({"allOf": 5}, 1),
        ({"prefixItems": 5}, [1]),
        ({"enum": 5}, "x"),
        ("string", "x"),
        ({"type": "object", "patternProperties": {"(": {}}}, {"k": 1}),
    ],
)
def test_invalid_schema_raises_schema_error(schema: Json, value: Json) -> None:
    """A schema that cannot be interpreted raises SchemaError instead of giving a verdict."""
    other = {"k": 2} if isinstance(value, dict) else [2] if isinstance(value, list) else "y"
    with pytest.raises(SchemaError):
        judge(parameters_with(schema), value, other)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(
        ["", "Oslo", "-5", "1,500", "1e400", "NaN", "null", "9999-12-31T23:59:59-23:59"]
    )
    | st.sampled_from(
        ["x²", "f(", "{k: 'v'}", "new int[]{1}", "new HashMap<>(){{put(", "\x00", "İ"]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=6,
)
TYPES = "string integer number array object null any dict tuple ArrayList HashMap Bigint quaternion"
LEAVES = {
    "type": st.sampled_from(TYPES.split()) | st.just(["string", "integer"]),
    "description": st.sampled_from(["Default is 5.", "default: [1, 2", "the coordinates"]),
    "default": VALUES,
    "enum": st.lists(VALUES, max_size=2) | st.just(7),
    "$ref": st.sampled_from(["#", "#/properties/a", "#/$defs/none", 5]),
}
SCHEMAS = st.recursive(
    st.fixed_dictionaries({}, optional=LEAVES) | st.sampled_from([True, 5, "string", None]),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            **LEAVES,
            "items": inner,
            "additionalProperties": inner,
            "anyOf": st.lists(inner, max_size=2),
            "allOf": st.lists(inner, max_size=2),
            "properties": st.dictionaries(st.sampled_from("ab"), inner),
            "required": st.just(["a"]),
        },
    ),
    max_leaves=5,
)


@given(SCHEMAS, VALUES, VALUES)
def test_no_schema_and_no_answer_makes_the_checker_crash(
    schema: Json, want: Json, made: Json
) -> None:
    """For every schema and every pair of values, there is a verdict or SchemaError."""
    with suppress(SchemaError):
        judge(parameters_with(schema), want, made)
