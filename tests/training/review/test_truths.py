"""Expected calls, validated against schemas, and compared with each other."""

from __future__ import annotations

import pytest

from router_service.checker.toolbox import ExpectedCall
from switchcraft_training.datasets.corrections import Truth, TruthCall, truth_of
from switchcraft_training.review.truths import (
    find_problem,
    truth_from_json,
)
from tests.training.review.cases import CHRISTMAS, row, tool, user


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
