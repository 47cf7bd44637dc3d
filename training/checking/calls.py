"""Calls against expected calls: an assignment, a score and a verdict (paper, section 3.2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from training.checking.tools import Toolbox
from training.checking.values import Alike, CheckError, Code, Comparer
from training.records import Call, Expected, ExpectedCall, Json, OneOf

CORRECT_FROM = 0.75
"""The paper's threshold on the score."""

FLAWED_AT_MOST = 0.74
"""A call with anything wrong in it is a wrong act, however much of it is right."""

NEARER = 1e-6
"""What a place of distance costs, so that of equal assignments the one in order is taken."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an answer is correct, how close it is, and all that is wrong with it."""

    score: float
    errors: tuple[CheckError, ...] = ()

    @property
    def correct(self) -> bool:
        """Whether the score reaches the threshold."""
        return self.score >= CORRECT_FROM


@dataclass(frozen=True, slots=True)
class _Match:
    """How well one call answers one expected call."""

    score: float
    errors: tuple[CheckError, ...] = ()


def check(
    tools: Sequence[Mapping[str, Json]],
    expected: Expected,
    calls: Sequence[Call] | None,
    alike: Alike | None = None,
) -> Verdict:
    """Judge an answer's calls (None: it did not parse) to a request with these OpenAI tools.

    The score is the mean over calls of the share of right arguments, and at most 0.74 where
    anything is wrong. Parallel calls match in any order, as the best assignment; those that
    depend on one another in theirs. `alike` tells paraphrases; without it there are none.
    Raises SchemaError where a schema that matters cannot be interpreted.
    """
    if expected.any_call or not expected.calls:
        return _judge_presence(expected, calls)
    if calls is None:
        return Verdict(0.0, (CheckError(Code.NOT_PARSED, "calls", "the answer holds no calls"),))
    if not calls:
        return Verdict(0.0, (_wrong_count(0, len(expected.calls)),))
    try:
        return _judge_calls(Toolbox(tools), expected.calls, calls, Comparer(alike))
    except RecursionError:
        error = CheckError(Code.TOO_DEEP, "calls", "nested too deeply to be compared")
        return Verdict(0.0, (error,))


def _judge_presence(expected: Expected, calls: Sequence[Call] | None) -> Verdict:
    """Judge by whether there is a call at all: where no tool fits, any call is wrong."""
    if bool(calls) == expected.any_call:
        return Verdict(1.0)
    if not calls:
        return Verdict(0.0, (CheckError(Code.NOT_PARSED, "calls", "the answer holds no calls"),))
    detail = f"called {calls[0].name!r} where no tool fits"
    return Verdict(0.0, (CheckError(Code.UNEXPECTED_CALL, "calls[0]", detail),))


def _judge_calls(
    toolbox: Toolbox, wanted: Sequence[ExpectedCall], calls: Sequence[Call], comparer: Comparer
) -> Verdict:
    matches = [
        [_match(toolbox, want, call, comparer, i) for i, call in enumerate(calls)]
        for want in wanted
    ]
    taken = _assigned(matches)
    errors = [error for want, call in taken.items() for error in matches[want][call].errors]
    if len(calls) != len(wanted):
        errors.append(_wrong_count(len(calls), len(wanted)))
    errors.extend(_order_errors(wanted, taken))
    total = sum(matches[want][call].score for want, call in taken.items())
    score = total / max(len(calls), len(wanted))
    return Verdict(min(score, FLAWED_AT_MOST) if errors else score, tuple(errors))


def _assigned(matches: Sequence[Sequence[_Match]]) -> dict[int, int]:
    """Return the call that answers each expected one, by index, so that the scores are highest."""
    if len(matches) == 1 and len(matches[0]) == 1:
        return {0: 0}
    costs = [
        [NEARER * abs(i - j) - match.score for j, match in enumerate(row)]
        for i, row in enumerate(matches)
    ]
    rows, columns = linear_sum_assignment(np.array(costs))
    return dict(zip(rows.tolist(), columns.tolist(), strict=True))


def _order_errors(wanted: Sequence[ExpectedCall], taken: Mapping[int, int]) -> Iterator[CheckError]:
    """Yield the calls that come before one that they depend on."""
    for want, call in taken.items():
        for earlier in wanted[want].after:
            if earlier in taken and taken[earlier] > call:
                detail = (
                    f"{wanted[want].name!r} before {wanted[earlier].name!r}, on which it depends"
                )
                yield CheckError(Code.WRONG_ORDER, f"calls[{call}]", detail)


def _wrong_count(found: int, wanted: int) -> CheckError:
    return CheckError(Code.WRONG_COUNT, "calls", f"{found} calls, not {wanted}")


def _match(
    toolbox: Toolbox, want: ExpectedCall, call: Call, comparer: Comparer, index: int
) -> _Match:
    if toolbox.name(call.name) != toolbox.name(want.name):
        detail = f"{call.name!r}, not {want.name!r}"
        return _Match(0.0, (CheckError(Code.WRONG_FUNCTION, f"calls[{index}].name", detail),))
    accepted = {
        name: OneOf(values, name in want.optional) for name, values in want.arguments.items()
    }
    schema, path = toolbox.schema(want.name), f"calls[{index}].arguments"
    errors = tuple(comparer.key_errors(call.arguments, accepted, schema, path))
    if not errors:
        return _Match(1.0)
    return _Match(1 - len(errors) / len(want.arguments.keys() | call.arguments.keys()), errors)
