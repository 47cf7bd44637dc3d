"""Features of candidate answers: their meaning, their symmetry, and limits for hostile input."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router_service.apis.answers import ParsedAnswer
from router_service.apis.conversation import Json, parse_conversation
from router_service.checker.toolbox import Call
from router_service.verifier.answer_features import (
    MAX_LEAVES,
    Beliefs,
    Candidates,
    Question,
    candidate_features,
    clipped_logit,
    read_answer,
    relate,
)
from tests.candidates import FORECAST, answer, ask, feature, read, request, tool

LIKELY = (0.4, 0.6, 0.9)

ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "city": st.sampled_from(["Oslo", "oslo", "Lima", 5]),
        "days": st.sampled_from([3, 4, 4.0, "4"]),
        "tags": st.sampled_from([[], ["a", "b"], ["B", "a"]]),
    },
)
ANSWERS = st.lists(st.builds(Call, st.sampled_from(["forecast", "other"]), ARGUMENTS), max_size=3)


def beliefs(order: Sequence[int] = (0, 1, 2)) -> Beliefs:
    """Return what is known of three arms in another order of columns."""
    probabilities = np.array(LIKELY)[list(order)]
    return Beliefs.of((), probabilities, clipped_logit(probabilities / 2))


@settings(max_examples=40)
@given(st.lists(ANSWERS, min_size=3, max_size=3), st.permutations(range(3)))
def test_order_of_candidates_does_not_matter(
    answers: list[list[Call]], order: Sequence[int]
) -> None:
    """A candidate has the same features, whichever answers are given first.

    The features contain nothing of an arm except its probability and its reliability: with the
    arms in other columns of the pool they are the same.
    """
    question = ask("Forecasts for Oslo and Lima, 4 days")
    known = [read_answer(question, calls) for calls in answers]
    first = candidate_features(beliefs(), Candidates.of(question, dict(enumerate(known))))
    given_later = {column: known[column] for column in order}
    later = candidate_features(beliefs(), Candidates.of(question, given_later))
    np.testing.assert_allclose(later, first[list(order)], atol=1e-9)
    moved = Candidates.of(question, {place: known[arm] for place, arm in enumerate(order)})
    elsewhere = candidate_features(beliefs(order), moved)
    np.testing.assert_allclose(elsewhere, first[list(order)], atol=1e-9)


@settings(max_examples=60)
@given(ANSWERS, ANSWERS)
def test_relation_is_mirrored(one: list[Call], other: list[Call]) -> None:
    """How the second answer relates to the first follows from how the first relates to it."""
    question = ask("Forecasts for Oslo and Lima, 4 days")
    here, there = (read_answer(question, calls) for calls in (one, other))
    forwards, backwards = relate(question, here, there), relate(question, there, here)
    assert backwards.mirrored() == pytest.approx(forwards)


@pytest.mark.parametrize(
    ("text", "value", "grounding"),
    [
        ("a discount of 5%", 0.05, 1.0),
        ("a share of 0.29", 29, 1.0),
        ("1,250 euros", 1250, 1.0),
        ("three nights", 3, 1.0),
        ('call it "Blue Danube"', "blue danube", 1.0),
        ("a discount of 5%", 0.06, 0.0),
        ("from York to the New Forest", "New York", 0.9),
        ("fly to York", "New York", 0.45),
        ("yes", True, None),
    ],
)
def test_values_that_were_said_are_grounded(
    text: str, value: Json, grounding: float | None
) -> None:
    """Numbers count as said in other units and in words, and strings in any case.

    Words that occur separately count in part, and booleans and null are not looked up.
    """
    assert ask(text).grounding(value) == pytest.approx(grounding)


def test_calls_since_the_query_count_as_done() -> None:
    """In a tool loop, an answer shows what it repeats, and what it leaves of the query."""
    body = request("Forecast for Oslo and for Bergen for 4 days")
    body["tools"].append(tool(FORECAST, name="book"))
    question = Question(parse_conversation(body), body["tools"])
    done = {"name": "forecast", "arguments": '{"days": 4, "city": "Oslo"}'}
    call = {"id": "a", "type": "function", "function": done}
    body["messages"] += [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "Rain"},
    ]
    loop = Question(parse_conversation(body), body["tools"])
    names = ("results_so_far", "calls_so_far", "repeated_so_far", "names_left", "numbers_left")
    for asked, made, counts in (
        (question, answer({"city": "Oslo", "days": 4}), (0, 0, 0, 1, 0)),
        (loop, answer({"city": "Oslo", "days": 4}), (1, 1, 1, 1, 0)),
        (loop, answer({"city": "Bergen"}), (1, 1, 0, 0, 0)),
        (loop, ParsedAnswer(text="Rain in Oslo."), (1, 1, 0, 1, 0)),
    ):
        assert tuple(feature(read(asked, made), name) for name in names) == counts


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"days": 2}, "missing"),
        ({"city": "Oslo", "place": "x"}, "unknown_arguments"),
        ({"city": "Oslo", "days": "many"}, "wrong_types"),
        ({"city": "Oslo", "unit": "kelvin"}, "not_in_enum"),
        ({"city": "Oslo", "unit": "celsius", "days": 2.0}, None),
    ],
)
def test_schema_fit(arguments: Json, problem: str | None) -> None:
    """A call fits if nothing is missing, unknown, of another type or outside its enum."""
    question = ask()
    known = read(question, answer(arguments))
    names = ("missing", "unknown_arguments", "wrong_types", "not_in_enum")
    counts = {name: feature(known, name) for name in names}
    assert counts == {name: float(name == problem) for name in names}
    assert feature(known, "fits_schema") == (problem is None)


UNREADABLE = {
    "not JSON": '{"city": ',
    "too many values": json.dumps({"tags": ["a"] * MAX_LEAVES}),
    "nested 1,000 deep": '{"city":' + "[" * 1000 + "]" * 1000 + "}",
    "5 MB": '{"city": "' + "x" * 5_000_000 + '"}',
}


def test_differing_arguments_are_counted() -> None:
    """A relation counts arguments with other values, and arguments that only one answer has.

    The answer whose city was said has a positive grounding lead.
    """
    question = ask("Forecast for Oslo?")
    said = read(question, answer({"city": "Oslo", "unit": "celsius"}))
    unsaid = read(question, answer({"city": "Lima", "days": 9}))
    relation = relate(question, said, unsaid)
    assert not relation.is_same
    assert (relation.differing, relation.only_here, relation.only_there) == (1, 1, 1)
    assert relation.grounding_lead == 1.0


@pytest.mark.parametrize("arguments", UNREADABLE.values(), ids=UNREADABLE)
def test_excessive_arguments_are_unreadable(arguments: str) -> None:
    """Such an answer is unreadable, and agrees with no other one."""
    question = ask()
    known = read(question, answer(arguments))
    assert known.calls is None
    assert feature(known, "is_unreadable") == 1
    assert not relate(question, known, known).is_same
