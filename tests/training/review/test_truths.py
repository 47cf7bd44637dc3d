"""Expected calls as text, validated against schemas, and compared with each other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router_service.checker.toolbox import ExpectedCall
from switchcraft_training.datasets.corrections import Truth, TruthCall, truth_of
from switchcraft_training.records import Judged
from switchcraft_training.review.truths import (
    are_equivalent,
    find_problem,
    truth_from_json,
    truth_from_text,
    truth_to_text,
)
from tests.training.review.cases import CHRISTMAS, SAVINGS, row, tool, user

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.sampled_from(["no", "2024-01-02", "1e5", "12:30", "012", "0x1f", "~", "1_000", "<<", "="]),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), st.lists(JSON, min_size=1), max_size=3))
def test_expected_calls_survive_conversion_to_text(arguments: dict[str, list[object]]) -> None:
    """Every value that a call can have is unchanged when the editor's text is read."""
    truth = (TruthCall(name="f", arguments=arguments, after=(1,)),)
    assert repr(truth_from_text(truth_to_text(truth))) == repr(truth)


def test_plain_yaml_scalars_are_read_as_in_json() -> None:
    """A date, a `no` and a leading zero remain strings; JSON is read too."""
    text = "- {name: f, arguments: {a: [2024-01-02, no, 012, 12:30, 5, 5.5, true, null, 1e3]}}"
    (call,) = truth_from_text(text)
    assert call.arguments["a"] == ["2024-01-02", "no", "012", "12:30", 5, 5.5, True, None, 1000.0]
    assert truth_from_text('[{"name": "f", "arguments": {"a": ["x"]}}]')[0].arguments["a"] == ["x"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("- name: [", r"^line 1: "),
        ("- name: f", r"0\.arguments: Field required"),
        ("name: f", "should be a valid tuple"),
        ("- {name: f, arguments: {a: 5}}", r"0\.arguments\.a: Input should be a valid list"),
    ],
)
def test_invalid_text_is_explained(text: str, problem: str) -> None:
    """The message names the line, or the path of the problem."""
    with pytest.raises(ValueError, match=problem):
        truth_from_text(text)


def flight(**arguments: list[object]) -> Truth:
    """Return expected calls that search for a flight."""
    given_ = {"origin": ["EWR"], "destination": ["BOS"], "date": ["2023-12-25"], **arguments}
    return truth_from_json([{"name": "search_flights", "arguments": given_}])


@pytest.mark.parametrize(
    ("truth", "problem"),
    [
        (flight(), None),
        (flight(cabin=["business"]), None),
        (flight(cabin=["first"]), "search_flights: cabin: 'first' is not one of"),
        (flight(cabin=["economy", "Economy"]), "search_flights: cabin: 'Economy' is not one of"),
        (flight(passengers=["two"]), "search_flights: passengers: 'two' is not of type 'integer'"),
        (flight(seat=["12A"]), "search_flights: there is no parameter 'seat'"),
        (truth_from_json([{"name": "fly", "arguments": {}}]), "no tool 'fly' is offered"),
        (
            truth_from_json([{"name": "search_flights", "arguments": {"origin": ["EWR"]}}]),
            "search_flights: 'destination' is a required property",
        ),
        ((TruthCall(name="get_balance", arguments={"account": ["1"]}, after=(4,)),), "indices of"),
        ((), None),
    ],
)
def test_expected_calls_are_validated_against_tools(truth: Truth, problem: str | None) -> None:
    """Every accepted value must be valid for the tool."""
    found = find_problem(CHRISTMAS, truth)
    assert found == problem if problem is None else found is not None and problem in found


def test_violations_of_present_calls_are_tolerated() -> None:
    """Violations that the present calls contain are allowed; type names beyond JSON's are known."""
    schema = {"type": "dict", "enum": ["a"]}
    call = ExpectedCall("f", {"how": ("b",), "n": (1,)})
    judged = row("x", [user("Go.")], [tool("f", "F.", [], how=schema, n={"type": "int"})], call)
    assert find_problem(judged, truth_of(judged)) is None
    (truth,) = truth_of(judged)
    other = truth.model_copy(update={"arguments": {"how": ["b"], "n": ["one"]}})
    assert "n: 'one' is not of type 'int'" in str(find_problem(judged, (other,)))


def test_invalid_schema_allows_every_value() -> None:
    """An unknown type or a broken reference prevents no correction."""
    odd = {"type": "blob"}, {"$ref": "#/nowhere"}, {"pattern": "("}, {"enum": 7}
    for schema in odd:
        judged = row("x", [user("Go.")], [tool("f", "F.", [], a=schema)])
        assert (
            find_problem(judged, truth_from_json([{"name": "f", "arguments": {"a": ["b"]}}]))
            is None
        )


@pytest.mark.parametrize(
    ("judged", "truth", "same"),
    [
        (SAVINGS, [{"name": "get_balance", "arguments": {"account": ["c-881"]}}], True),
        (SAVINGS, [{"name": "get_balance", "arguments": {"account": ["C-882"]}}], False),
        (SAVINGS, [{"name": "get_balance", "arguments": {"account": ["C-881", "S-204"]}}], False),
        (SAVINGS, [], False),
        (row("none", [user("Hi.")], []), [], True),
    ],
)
def test_calls_are_equivalent_if_each_accepts_the_other(
    judged: Judged, truth: list[object], *, same: bool
) -> None:
    """Another notation is equivalent; an additional accepted value is not."""
    assert are_equivalent(judged, truth_from_json(truth)) is same


def test_additional_optional_parameter_is_not_equivalent() -> None:
    """Expected calls that also accept an omission are different."""
    call = {"name": "get_balance", "arguments": {"account": ["C-881"]}}
    assert not are_equivalent(SAVINGS, truth_from_json([{**call, "optional": ["account"]}]))
