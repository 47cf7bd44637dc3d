"""Answers that hold no calls: words, failures, and calls that cannot be read."""

from __future__ import annotations

import pytest

from switchcraft_training.checking.answers import judge
from switchcraft_training.checking.parsing import parse_text
from switchcraft_training.records import Answer, Example, Expected, ExpectedCall

EXAMPLE = Example("q", "simple", {"messages": [], "tools": [{"function": {"name": "f"}}]})


def is_right(text: str, expected: Expected) -> bool:
    """Judge what a model wrote."""
    parsed = parse_text(text)
    answer = Answer("q", "m", parsed.calls, parsed.problem, None, None)
    return judge(EXAMPLE, expected, answer).correct


@pytest.mark.parametrize(
    ("text", "is_right_silence"),
    [
        ("I cannot know that.", True),
        ("You could call f(a=1) if it fitted.", True),
        ("f(a=1)", False),
        ("[f(a='it's')]", False),
        ("f(1)", False),
        ("", False),
    ],
)
def test_where_no_tool_fits_words_alone_are_right(text: str, is_right_silence: bool) -> None:
    """Words are right; a call is wrong, also one that cannot be read; no answer is none."""
    assert is_right(text, Expected(())) is is_right_silence


def test_where_a_call_is_expected_nothing_else_will_do() -> None:
    """What could not be read is wrong, with the code of why."""
    expected = Expected((ExpectedCall("f", {"a": (1,)}),))
    assert is_right("f(a=1)", expected)
    assert not is_right("I would call f.", expected)
    parsed = parse_text("f(a=1")
    answer = Answer("q", "m", parsed.calls, parsed.problem, None, None)
    assert "malformed_call" in judge(EXAMPLE, expected, answer).errors[0].detail
