"""Verdicts: what `check` and `check_answer` accept and reject."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router_service.checker.comparison import OneOf
from router_service.checker.toolbox import Call, ExpectedCall
from switchcraft_training.checking import CORRECT_FROM, check, check_answer, parse_text
from switchcraft_training.checking.mistakes import ErrorCode
from switchcraft_training.checking.score import score_lines
from switchcraft_training.records import Answer, Example, Expected

STRING = {"type": "string"}
NUMBER = {"type": "number"}
INTEGER = {"type": "integer"}


def tool(name: str, **properties: dict[str, Any]) -> dict[str, Any]:
    """Return an OpenAI function tool with these parameters."""
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def judge(schema: dict[str, Any], expected: object, given_: object) -> tuple[bool, list[str]]:
    """Check one argument against one expected value; return the verdict and the error codes."""
    want = ExpectedCall("f", {"a": (expected,)})
    verdict = check([tool("f", a=schema)], Expected((want,)), [Call("f", {"a": given_})])
    return verdict.correct, [error.code.value for error in verdict.errors]


COURSES = {
    "type": "array",
    "items": {"type": "object", "properties": {"g": STRING, "c": STRING}},
}
NESTED = {
    "type": "object",
    "properties": {"x": {"type": "object", "properties": {"y": STRING}}, "z": STRING},
}

# Among these are the rows of the table of acceptable variation in the paper's appendix.
ACCEPTED = [
    (
        {"type": "array", "items": STRING},
        ["mystery", "haunted house"],
        ["Haunted house", "mystery"],
    ),
    (
        COURSES,
        [{"c": "Math", "g": "B"}, {"c": "Art", "g": "A"}],
        [{"g": "A", "c": "Art"}, {"c": "Math", "g": "B"}],
    ),
    ({"type": "array", "items": {"type": "array"}}, [[1, 2], [3, 4]], [[1, 2], [3, 4]]),
    (
        NESTED,
        {"x": {"y": "Secret Key"}, "z": "b"},
        {"x": {"y": "secret key"}, "z": "b"},
    ),
    (
        {"type": "object", "properties": {"p": {"type": "integer", "default": 0}}},
        {"p": 0},
        {},
    ),
    ({"type": "object"}, {"k": OneOf(("a", "b"), is_optional=True)}, {}),
    ({"type": "object"}, {"k": OneOf(("a", "b"))}, {"k": "B"}),
    (STRING, 5, "5"),
    (STRING, "5", 5),
    (NUMBER, 5, 5.0),
    (NUMBER, 1 / 3, 0.333333333),
    ({"type": "string", "enum": ["x"]}, "Oslo", "oslo"),
    ({"type": "boolean"}, True, True),
    ({}, None, None),
]

REJECTED = [
    (
        COURSES,
        [{"c": "Math", "g": "B"}, {"c": "Art", "g": "A"}],
        [{"c": "Math", "g": "A"}, {"c": "Art", "g": "B"}],
        "wrong_value",
    ),
    (NESTED, {"x": {"y": "a"}, "z": "b"}, {"x": {"y": "c"}, "z": "b"}, "wrong_value"),
    (STRING, "Buy", "Sell", "wrong_value"),
    (INTEGER, 4111111111111111, 4111111111111112, "wrong_value"),
    (NUMBER, 10**400, 1.5, "wrong_value"),
    (INTEGER, 5, 10**400, "wrong_value"),
    (NUMBER, -5, 5, "wrong_value"),
    (NUMBER, 1 / 3, 0.33333333, "wrong_value"),
    (NUMBER, 0.123456789012, 0.123456789, "wrong_value"),
    ({"type": "array", "items": INTEGER}, [1], [], "wrong_value"),
    (INTEGER, 5, "5", "wrong_type"),
    (INTEGER, 5, 5.5, "wrong_type"),
    (INTEGER, 1, True, "wrong_type"),
    ({"type": "boolean"}, True, 1, "wrong_type"),
    ({"type": "boolean"}, True, "true", "wrong_type"),
    ({"type": "array", "items": INTEGER}, [1, 2, 2], [1, 1, 2], "wrong_value"),
    ({"type": "array", "items": INTEGER}, [1, 2], [1, 2, 3], "wrong_value"),
    (
        {"type": "array", "items": {"type": "array"}},
        [[1, 2], [3, 4]],
        [[3, 4], [1, 2]],
        "wrong_value",
    ),
    ({"type": "array", "items": {"type": "array"}}, [[1, 2]], [[2, 1]], "wrong_value"),
    ({"type": "object"}, {"a": 1}, {"a": 1, "b": 2}, "unexpected_parameter"),
    ({"type": "object"}, {"a": 1, "b": 2}, {"a": 1}, "missing_parameter"),
    (STRING, "x", None, "wrong_type"),
    (STRING, "x", ["x"], "wrong_type"),
]


@pytest.mark.parametrize(("schema", "expected", "given_"), ACCEPTED)
def test_accepted(schema: dict[str, Any], expected: object, given_: object) -> None:
    """Variation that does not change the action is accepted."""
    assert judge(schema, expected, given_) == (True, [])


@pytest.mark.parametrize(("schema", "expected", "given_", "code"), REJECTED)
def test_rejected(schema: dict[str, Any], expected: object, given_: object, code: str) -> None:
    """Any change of the action is rejected with the code of its reason."""
    assert judge(schema, expected, given_) == (False, [code])


WEATHER = tool("get_weather", city=STRING, days={**INTEGER, "description": "Default is 1"})
OSLO = ExpectedCall("get_weather", {"city": ("Oslo",)})


def codes(expected: Expected, *calls: Call) -> list[ErrorCode]:
    """Return the error codes of these calls."""
    return [error.code for error in check([WEATHER], expected, calls).errors]


def test_only_optional_and_default_parameters_may_be_omitted_or_added() -> None:
    """Only the defaults and the expected call decide which parameters may be omitted or added."""
    days = Expected((ExpectedCall("get_weather", {"city": ("Oslo",), "days": (1,)}),))
    more = Expected((ExpectedCall("get_weather", {"city": ("Oslo",), "days": (3,)}),))
    either = Expected(
        (ExpectedCall("get_weather", {"city": ("Oslo",), "days": (3,)}, frozenset({"days"})),)
    )
    bare = Call("get_weather", {"city": "Oslo"})
    assert codes(days, bare) == []
    assert codes(more, bare) == [ErrorCode.MISSING_PARAMETER]
    assert codes(either, bare) == []
    assert codes(Expected((OSLO,)), Call("get_weather", {"city": "Oslo", "days": 1})) == []
    extra = codes(Expected((OSLO,)), Call("get_weather", {"city": "Oslo", "days": 2}))
    assert extra == [ErrorCode.UNEXPECTED_PARAMETER]
    unknown = codes(Expected((OSLO,)), Call("get_weather", {"city": "Oslo", "zone": 1}))
    assert unknown == [ErrorCode.UNEXPECTED_PARAMETER]


@pytest.mark.parametrize(
    ("days", "is_correct"), [(3, True), ([], True), (4, False), ([3, 3], False)]
)
def test_optional_parameter_may_be_empty_but_not_wrong(days: object, is_correct: bool) -> None:
    """An empty array for an optional parameter omits it; any other wrong value is a mistake."""
    want = ExpectedCall("get_weather", {"city": ("Oslo",), "days": (3,)}, frozenset({"days"}))
    call = Call("get_weather", {"city": "Oslo", "days": days})
    assert check([WEATHER], Expected((want,)), [call]).correct is is_correct


def test_wrong_number_of_calls_is_reported() -> None:
    """A missing call, an extra call and no calls are wrong, each with its code."""
    oslo, rome = Call("get_weather", {"city": "Oslo"}), Call("get_weather", {"city": "Rome"})
    both = Expected((OSLO, ExpectedCall("get_weather", {"city": ("Rome",)})))
    assert codes(both, rome, oslo) == []
    assert codes(both, oslo) == [ErrorCode.WRONG_COUNT]
    assert codes(Expected((OSLO,)), oslo, oslo) == [ErrorCode.WRONG_COUNT]
    assert codes(both) == [ErrorCode.WRONG_COUNT]
    assert check([WEATHER], both, None).errors[0].code is ErrorCode.NOT_PARSED


def test_parallel_calls_are_assigned_optimally() -> None:
    """A call that fits two expected calls is assigned so that the other one is satisfied too."""
    flexible = ExpectedCall("get_weather", {"city": ("Oslo", "Rome")})
    calls = [Call("get_weather", {"city": "Oslo"}), Call("get_weather", {"city": "Rome"})]
    assert check([WEATHER], Expected((flexible, OSLO)), calls).correct


UNITS = {"type": "string", "enum": ["km", "mi"]}
OBJECT = {"type": "object", "properties": {"x": INTEGER}}


@pytest.mark.parametrize(
    ("schema", "accepted", "arguments", "code", "place", "detail"),
    [
        (STRING, ("Oslo",), {"a": "Rome"}, "wrong_value", ".a", "'Rome', not 'Oslo'"),
        (STRING, (), {"b": 7}, "unexpected_parameter", ".b", "7 where nothing was expected"),
        (STRING, ("x", "y"), {}, "missing_parameter", ".a", "expected 'x' or 'y'"),
        (STRING, tuple("xyz"), {}, "missing_parameter", ".a", "expected 'x' or 'y' or 'z'"),
        (STRING, tuple("xyzuv"), {}, "missing_parameter", ".a",
         "expected 'x' or 'y' or 'z' or 2 more"),
        (INTEGER, (1,), {"a": "1"}, "wrong_type", ".a", "'1' is not of type integer"),
        ({"type": ["integer", "boolean"]}, (1,), {"a": []}, "wrong_type", ".a",
         "[] is not of type boolean or integer"),
        (UNITS, ("km",), {"a": "ft"}, "not_in_enum", ".a", "'ft' is not one of 'km' or 'mi'"),
        (UNITS, ("km",), {"a": "mi"}, "wrong_value", ".a", "'mi', not 'km'"),
        (OBJECT, ({"x": 1},), {"a": {"x": 2}}, "wrong_value", ".a.x", "2, not 1"),
        (OBJECT, ({"x": 1}, {"x": 3}), {"a": {"x": 2}}, "wrong_value", ".a",
         "{'x': 2}, not {'x': 1} or {'x': 3}"),
        (OBJECT, ({"x": OneOf((1, 3))},), {"a": {"x": 2}}, "wrong_value", ".a.x", "2, not 1 or 3"),
        (STRING, ("x",), {"a": "y" * 118}, "wrong_value", ".a", f"'{'y' * 118}', not 'x'"),
        (STRING, ("x",), {"a": "y" * 119}, "wrong_value", ".a", f"'{'y' * 116}..., not 'x'"),
    ],
)  # fmt: skip
def test_error_says_what_is_wrong_and_what_was_expected(
    schema: dict[str, Any],
    accepted: tuple[object, ...],
    arguments: dict[str, Any],
    code: str,
    place: str,
    detail: str,
) -> None:
    """An error has the path of its argument, and shows at most 3 values of 120 characters."""
    wanted = ExpectedCall("f", {"a": accepted} if accepted else {})
    (error,) = check([tool("f", a=schema)], Expected((wanted,)), [Call("f", arguments)]).errors
    assert (error.code, error.path) == (code, f"calls[0].arguments{place}")
    assert error.detail == detail


def test_dependent_calls_keep_their_order() -> None:
    """A call that depends on another must come after it; other calls may come in any order."""
    go, look = ExpectedCall("cd", {"a": ("x",)}), ExpectedCall("ls", {}, after=frozenset({0}))
    tools = [tool("cd", a=STRING), tool("ls")]
    cd, ls = Call("cd", {"a": "x"}), Call("ls", {})
    assert check(tools, Expected((go, look)), [cd, ls]).correct
    verdict = check(tools, Expected((go, look)), [ls, cd])
    assert [(e.code, e.path) for e in verdict.errors] == [(ErrorCode.WRONG_ORDER, "calls[0]")]
    assert check(tools, Expected((go, ExpectedCall("ls", {}))), [ls, cd]).correct


def test_any_call_is_correct_if_any_call_is_expected() -> None:
    """With `any_call`, every call is correct and an answer without calls is wrong."""
    some = Expected((), any_call=True)
    assert check([WEATHER], some, [Call("get_weather", {})]).correct
    assert check([WEATHER], some, None).errors[0].code is ErrorCode.NOT_PARSED
    assert not check([WEATHER], some, []).correct


def test_ambiguous_names_are_distinct_if_both_are_offered() -> None:
    """`a.b` equals `a_b`, unless the request offers both."""
    want = Expected((ExpectedCall("a.b", {}),))
    assert check([tool("a.b")], want, [Call("a_b", {})]).correct
    assert not check([tool("a.b"), tool("a_b")], want, [Call("a_b", {})]).correct


def test_list_items_are_assigned_optimally() -> None:
    """An item that fits two accepted items is assigned so that the other one is satisfied too."""
    choices = [OneOf(("a", "b")), OneOf(("a",))]
    array = {"type": "array", "items": STRING}
    assert judge(array, choices, ["a", "b"]) == (True, [])
    assert judge(array, choices, ["b", "b"]) == (False, ["wrong_value"])


MATRIX = [[1, 2, 3], [2, 3, 4], [2, 3, 8]]


@pytest.mark.parametrize("is_wrapped", [True, False])
@pytest.mark.parametrize(
    ("items", "lists", "right", "wrong"),
    [
        ({"type": "array", "items": INTEGER}, MATRIX, [MATRIX], [MATRIX[0], MATRIX[::-1]]),
        (STRING, [["a", "b"], ["a", "c"]], [["c", "a"], ["b", "a"]], [["b", "c"]]),
    ],
)
def test_list_of_lists_is_a_matrix_or_alternatives_by_the_schema(
    items: dict[str, Any], lists: list[Any], right: list[Any], wrong: list[Any], is_wrapped: bool
) -> None:
    """If items are arrays, it is one matrix; if they are scalars, it holds alternatives."""
    schema = {"type": "array", "items": items}
    expected = Expected((ExpectedCall("f", {"a": (lists,) if is_wrapped else tuple(lists)}),))
    for made in (*right, *wrong):
        verdict = check([tool("f", a=schema)], expected, [Call("f", {"a": made})])
        assert verdict.correct is (made in right)


values = st.recursive(
    st.booleans() | st.integers(-99, 99) | st.floats(-9, 9) | st.text("abcXYZ 0189-.", max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", min_size=1), inner, max_size=3)
    ),
    max_leaves=8,
)
arguments = st.dictionaries(st.sampled_from("abc"), values, max_size=3)
made_calls = st.lists(st.tuples(st.sampled_from("fg"), arguments), min_size=1, max_size=4)


@given(made_calls, st.randoms(use_true_random=False))
def test_a_call_matches_itself_in_any_order(
    calls: list[tuple[str, dict[str, Any]]], rng: random.Random
) -> None:
    """Any calls are correct if the same calls are expected, in any order."""
    want = [ExpectedCall(n, {k: (v,) for k, v in a.items()}) for n, a in calls]
    made = [Call(n, dict(reversed(a.items()))) for n, a in calls]
    rng.shuffle(made)
    verdict = check([tool("f"), tool("g")], Expected(tuple(want)), made)
    assert verdict.score == 1.0
    assert verdict.errors == ()


@given(made_calls, made_calls)
def test_score_reaches_the_threshold_only_without_errors(
    wanted: list[tuple[str, dict[str, Any]]], made: list[tuple[str, dict[str, Any]]]
) -> None:
    """A score is between 0 and 1, and reaches the threshold exactly if there is no error."""
    want = tuple(ExpectedCall(n, {k: (v,) for k, v in a.items()}) for n, a in wanted)
    verdict = check([tool("f"), tool("g")], Expected(want), [Call(n, a) for n, a in made])
    assert 0 <= verdict.score <= 1
    assert verdict.correct == (verdict.score >= CORRECT_FROM) == (not verdict.errors)


@given(
    st.floats(allow_nan=False, allow_infinity=False).map(lambda x: float(f"{x:.12g}")), st.data()
)
def test_different_digit_or_sign_is_never_accepted(number: float, data: st.DataObject) -> None:
    """Changing one digit or the sign of an expected number makes the call wrong."""
    text = repr(number)
    places = [i for i, mark in enumerate(text.partition("e")[0]) if mark.isdigit()]
    place = data.draw(st.sampled_from(places))
    digit = data.draw(st.sampled_from("0123456789"))
    changed = float(text[:place] + digit + text[place + 1 :])
    assert judge(NUMBER, number, changed)[0] == (number == changed)
    assert judge(NUMBER, number, -number)[0] == (number == 0)
    assert judge(STRING, f"at {number:f}", f"at {changed:f}")[0] == (
        float(f"{number:f}") == float(f"{changed:f}")
    )


EXAMPLE = Example("q", "simple", {"messages": [], "tools": [{"function": {"name": "f"}}]})


def is_correct_text(text: str, expected: Expected) -> bool:
    """Check what a model wrote."""
    parsed = parse_text(text)
    answer = Answer("q", "m", parsed.calls, parsed.problem, None, None)
    return check_answer(EXAMPLE, expected, answer).correct


@pytest.mark.parametrize(
    ("text", "is_correct"),
    [
        ("I cannot know that.", True),
        ("You could call f(a=1) if it fitted.", True),
        ("f(a=1)", False),
        ("[f(a='it's')]", False),
        ("f(1)", False),
        ("", False),
    ],
)
def test_text_is_correct_if_no_tool_fits(text: str, is_correct: bool) -> None:
    """If no tool fits, a text is correct; a call, an unreadable call and no answer are wrong."""
    assert is_correct_text(text, Expected(())) is is_correct


PAIR = {
    "id": "1",
    "tools": [WEATHER],
    "expected": [{"name": "get_weather", "arguments": {"city": ["Rome", "Roma"]}}],
    "calls": [{"name": "get_weather", "arguments": {"city": "rome"}}],
}
BROKEN = tool("get_weather", city={"type": "quaternion"})


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, {"id": "1", "correct": True, "score": 1.0, "errors": []}),
        ({"calls": None}, {"correct": False, "code": "not_parsed"}),
        ({"expected": [], "calls": []}, {"correct": True}),
        ({"calls": [{"name": "get_weather"}]}, {"error": "invalid_pair", "path": "calls[0]"}),
        ({"tools": [{"type": "custom"}]}, {"error": "invalid_pair", "path": "tools[0]"}),
        ({"tools": [BROKEN]}, {"error": "invalid_schema", "path": "tools"}),
        (None, {"error": "invalid_json", "path": ""}),
    ],
)
def test_score_has_a_verdict_or_an_error_for_each_line(
    changes: dict[str, Any] | None, verdict: dict[str, Any]
) -> None:
    """`switchcraft-train score` answers every line, and names what a line has wrong."""
    line = b"oops" if changes is None else json.dumps(PAIR | changes).encode()
    found, after = map(json.loads, score_lines([line, json.dumps(PAIR).encode()]))
    assert after["correct"] is True
    if "error" in found:
        found = {"error": found["error"]["code"], "path": found["error"]["path"]}
    elif found["errors"]:
        found["code"] = found["errors"][0]["code"]
    assert {name: found[name] for name in verdict} == verdict
