"""The critic's answers, read as opinions."""

from __future__ import annotations

import json

import pytest

from switchcraft_training.datasets.corrections import ErrorCategory
from switchcraft_training.records import Judged
from switchcraft_training.review.verify import read_opinion
from tests.training.review.cases import CHRISTMAS, GARBLED, SAVINGS, VERDICTS, corrected


def verdict(kind: str, **fields: object) -> str:
    """Return a critic's answer."""
    return json.dumps({"verdict": kind, "explanation": "Because.", **fields})


@pytest.mark.parametrize(
    "text",
    [
        verdict("right"),
        verdict("right", expected=corrected("S-204")),
        verdict("wrong_truth", expected=corrected("C-881")),
        verdict("wrong_truth", expected=corrected("c-881")),
        "```json\n" + verdict("right") + "\n```",
    ],
)
def test_equivalent_suggestion_does_not_flag_the_row(text: str) -> None:
    """A row is not flagged if the critic agrees or suggests equivalent calls."""
    opinion = read_opinion(SAVINGS, text)
    assert (opinion.is_flagged, opinion.change, opinion.problem) == (False, None, None)


@pytest.mark.parametrize(
    ("judged", "text", "problem"),
    [
        (GARBLED, VERDICTS["garbled"], "cannot be read"),
        (SAVINGS, None, "cannot be read"),
        (SAVINGS, '{"verdict": "maybe"}', "cannot be read: verdict"),
        (SAVINGS, verdict("wrong_truth"), "cannot be used: "),
        (SAVINGS, verdict("wrong_truth", expected=[{"name": "get_balance"}]), "arguments: Field"),
        (
            SAVINGS,
            verdict("wrong_truth", expected=corrected("S-204", "close_account")),
            "no tool 'close_account' is offered",
        ),
        (
            SAVINGS,
            verdict(
                "wrong_truth", expected=[{"name": "get_balance", "arguments": {"account": [4]}}]
            ),
            "4 is not of type 'string'",
        ),
        (CHRISTMAS, verdict("ambiguous_input"), "user message is missing, empty or unchanged"),
        (
            CHRISTMAS,
            verdict("ambiguous_input", utterance=CHRISTMAS.example.query),
            "the new last user message is missing, empty or unchanged",
        ),
    ],
)
def test_unusable_suggestion_flags_the_row_with_its_problem(
    judged: Judged, text: str | None, problem: str
) -> None:
    """A person sees every doubt of the critic, even without a usable correction."""
    opinion = read_opinion(judged, text)
    assert opinion.is_flagged
    assert opinion.change is None
    assert problem in str(opinion.problem)


def test_unknown_category_becomes_the_most_frequent_one() -> None:
    """An unknown category does not discard the correction."""
    text = verdict("wrong_truth", category="temporal_ambiguity", expected=corrected("S-204"))
    opinion = read_opinion(SAVINGS, text)
    assert (opinion.category, opinion.problem) == (ErrorCategory.INCORRECT_VALUE, None)
