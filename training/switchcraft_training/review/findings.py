"""What a verifier model finds in an entry: its answer, read and judged."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from switchcraft_training.datasets.corrections import (
    CATEGORIES,
    Change,
    CorrectionKind,
    ErrorCategory,
    first_problem,
    last_utterance,
)
from switchcraft_training.records import Json, Judged
from switchcraft_training.review.truths import is_same, problem_with, truth_from_json

DEFAULT_CATEGORY: Final = {
    CorrectionKind.TRUTH: ErrorCategory.INCORRECT_VALUE,
    CorrectionKind.INPUT: ErrorCategory.AMBIGUOUS_TIME,
}
"""The most frequent of each kind in the paper's review."""


class Opinion(BaseModel):
    """A verifier's opinion on an entry, judged: is it flagged, and what would correct it.

    `change` is None where the entry is right as it is, or where the suggested correction cannot
    be used; `problem` then says why.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    is_flagged: bool
    kind: CorrectionKind = CorrectionKind.TRUTH
    category: ErrorCategory = DEFAULT_CATEGORY[CorrectionKind.TRUTH]
    explanation: str = ""
    change: Change | None = None
    problem: str | None = None


class Finding(BaseModel):
    """An opinion on one row as it was in one round, and what it cost.

    `cost_usd` is None where no price is known.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    row_sha256: str
    round: int
    opinion: Opinion
    model: str
    input_tokens: int
    output_tokens: int
    cost_usd: float | None = None
    at: str


class _Verdict(StrEnum):
    RIGHT = "right"
    WRONG_TRUTH = "wrong_truth"
    AMBIGUOUS_INPUT = "ambiguous_input"


class _Answer(BaseModel):
    """What the verifier is asked to answer; a correction is read on its own, if it is wanted."""

    verdict: _Verdict
    category: str | None = None
    explanation: str = ""
    expected: Json = None
    utterance: Json = None


def judge(judged: Judged, text: str | None) -> Opinion:
    """Read a verifier's answer; one that cannot be read or used flags the entry all the same."""
    try:
        answer = _Answer.model_validate_json(_json_in(text or ""))
    except ValidationError as exc:
        problem = f"the verifier's answer cannot be read: {first_problem(exc)}"
        return Opinion(is_flagged=True, explanation=(text or "").strip(), problem=problem)
    if answer.verdict is _Verdict.RIGHT:
        return Opinion(is_flagged=False, explanation=answer.explanation)
    kind = CorrectionKind.TRUTH if answer.verdict is _Verdict.WRONG_TRUTH else CorrectionKind.INPUT
    return _flag(judged, answer, kind)


def _json_in(text: str) -> str:
    """Return what stands between the outermost braces: some models fence their JSON."""
    return text[text.find("{") : text.rfind("}") + 1]


def _flag(judged: Judged, answer: _Answer, kind: CorrectionKind) -> Opinion:
    category = _category(answer.category, kind)
    try:
        change = _change(judged, answer, kind, category)
    except ValueError as exc:
        return Opinion(
            is_flagged=True,
            kind=kind,
            category=category,
            explanation=answer.explanation,
            problem=f"the suggestion cannot be used: {exc}",
        )
    return Opinion(
        is_flagged=change is not None,
        kind=kind,
        category=category,
        explanation=answer.explanation,
        change=change,
    )


def _category(proposed: str | None, kind: CorrectionKind) -> ErrorCategory:
    return next((c for c in CATEGORIES[kind] if c == proposed), DEFAULT_CATEGORY[kind])


def _change(
    judged: Judged, answer: _Answer, kind: CorrectionKind, category: ErrorCategory
) -> Change | None:
    """Return the suggested change, None where it changes nothing; ValueError: cannot be used."""
    if kind is CorrectionKind.INPUT:
        utterance = _utterance(judged, answer.utterance)
        return Change(kind=kind, category=category, utterance=utterance)
    truth = truth_from_json(answer.expected)
    problem = problem_with(judged, truth)
    if problem is not None:
        raise ValueError(problem)
    if is_same(judged, truth):
        return None
    return Change(kind=kind, category=category, expected=truth)


def _utterance(judged: Judged, suggested: Json) -> str:
    present = last_utterance(judged.example)
    if present is None:
        raise ValueError("the last user message is no plain text")
    if not isinstance(suggested, str) or not suggested.strip() or suggested == present:
        raise ValueError("it is no other utterance")
    return suggested
