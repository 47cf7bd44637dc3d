"""Verdicts on tool calls and on whole answers (paper, section 3.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from router_service.apis.conversation import Json
from router_service.checker.comparison import Comparer, IsParaphrase, can_pair_all
from router_service.checker.toolbox import Call, CallComparison, ExpectedCall, Toolbox
from switchcraft_training.checking.mistakes import (
    CheckError,
    ErrorCode,
    errors_in_call,
    score_call,
    toolbox_of,
)
from switchcraft_training.checking.parsing import TEXT_PROBLEMS
from switchcraft_training.records import Answer, Example, Expected

CORRECT_FROM = 0.75
"""Least score of a correct answer, as in the paper."""

MAX_SCORE_WITH_ERRORS = 0.74
"""Highest score of an answer with a mistake. A call with any mistake is a wrong action, even if
most of its arguments are correct."""

POSITION_COST = 1e-6
"""Cost for each position between a call and its expected call. It only decides between assignments
with equal scores, in favour of the one that keeps the order."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Score of an answer's calls, and every mistake in them."""

    score: float
    errors: tuple[CheckError, ...] = ()

    @property
    def correct(self) -> bool:
        """Return whether the score reaches the threshold."""
        return self.score >= CORRECT_FROM


def check_answer(
    example: Example, expected: Expected, answer: Answer, is_paraphrase: IsParaphrase | None = None
) -> Verdict:
    """Check a model's answer. Raises SchemaError if a tool's schema cannot be interpreted.

    If no tool fits the query, an answer in words is correct. For such a query, a failed request is
    still wrong because it is no answer, and an unparsable call because it was meant as a call.
    """
    if answer.calls is None and answer.problem not in TEXT_PROBLEMS:
        detail = f"the answer could not be read: {answer.problem}"
        return Verdict(0.0, (CheckError(ErrorCode.NOT_PARSED, "calls", detail),))
    return check(example.request["tools"], expected, answer.calls, is_paraphrase)


def check(
    tools: Toolbox | Sequence[Mapping[str, Json]],
    expected: Expected,
    calls: Sequence[Call] | None,
    is_paraphrase: IsParaphrase | None = None,
) -> Verdict:
    """Check the calls of an answer, or None for an answer in words, against the expected calls.

    `tools` are the tools of the OpenAI request. The score is the share of correct arguments,
    averaged over the calls; any mistake limits it to 0.74. Independent calls may have any order and
    are matched by the best assignment. A call that depends on another must come after it.
    Paraphrases of texts of several words are accepted only if `is_paraphrase` is given. Raises
    SchemaError if a schema that the verdict depends on cannot be interpreted.
    """
    if expected.any_call or not expected.calls:
        if bool(calls) == expected.any_call:
            return Verdict(1.0)
        if calls:
            detail = f"called {calls[0].name!r}, but no tool fits the query"
            return Verdict(0.0, (CheckError(ErrorCode.UNEXPECTED_CALL, "calls[0]", detail),))
        calls = None
    if calls is None:
        error = CheckError(ErrorCode.NOT_PARSED, "calls", "the answer holds no calls")
        return Verdict(0.0, (error,))
    if not calls:
        return Verdict(0.0, (_count_error(0, len(expected.calls)),))
    toolbox = tools if isinstance(tools, Toolbox) else toolbox_of(tools)
    comparison = CallComparison(toolbox, expected.calls, calls, Comparer(is_paraphrase))
    try:
        return _compare_calls(comparison, expected.calls, calls)
    except RecursionError:
        error = CheckError(ErrorCode.TOO_DEEP, "calls", "nested too deeply to be compared")
        return Verdict(0.0, (error,))


def _compare_calls(
    comparison: CallComparison, wanted: Sequence[ExpectedCall], calls: Sequence[Call]
) -> Verdict:
    """Return the verdict for the best assignment of calls to expected calls."""
    has_order = any(want.after for want in wanted)
    if len(calls) == len(wanted) and not has_order and can_pair_all(len(wanted), comparison.fits):
        return Verdict(1.0)
    if len(calls) == len(wanted) == 1:
        call_of = {0: 0}
    else:
        call_of = _best_assignment(comparison, len(wanted), len(calls))
    errors = [error for pair in call_of.items() for error in errors_in_call(comparison, *pair)]
    if len(calls) != len(wanted):
        errors.append(_count_error(len(calls), len(wanted)))
    for want, call in call_of.items():
        for earlier in wanted[want].after:
            if earlier in call_of and call_of[earlier] > call:
                name, other = wanted[want].name, wanted[earlier].name
                detail = f"{name!r} was called before {other!r}, on which it depends"
                errors.append(CheckError(ErrorCode.WRONG_ORDER, f"calls[{call}]", detail))
    scores = [score_call(comparison, *pair) for pair in call_of.items()]
    score = sum(scores) / max(len(calls), len(wanted))
    return Verdict(min(score, MAX_SCORE_WITH_ERRORS) if errors else score, tuple(errors))


def _count_error(found: int, wanted: int) -> CheckError:
    return CheckError(ErrorCode.WRONG_COUNT, "calls", f"{found} calls, not {wanted}")


def _best_assignment(comparison: CallComparison, wanted: int, calls: int) -> dict[int, int]:
    """Return the index of the call for each expected call, so that the total score is highest.

    If there are more calls than expected calls, or fewer, the surplus stays unassigned.
    """
    # Imported here: SciPy takes 0.3 s to import, and most answers do not need it.
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415

    costs = [
        [POSITION_COST * abs(i - j) - score_call(comparison, i, j) for j in range(calls)]
        for i in range(wanted)
    ]
    rows, columns = linear_sum_assignment(np.array(costs))
    return dict(zip(rows.tolist(), columns.tolist(), strict=True))
