"""Calls against expected calls: an assignment, a score and a verdict (paper, section 3.2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from switchcraft_training.checking.matching import match_all
from switchcraft_training.checking.schema import Schema
from switchcraft_training.checking.tools import Toolbox, toolbox
from switchcraft_training.checking.values import Alike, CheckError, Code, Comparer
from switchcraft_training.records import Call, Expected, ExpectedCall, Json, OneOf

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
class _Want:
    """An expected call with what it is compared by."""

    name: str
    arguments: Mapping[str, OneOf]
    schema: Schema


class _Matrix:
    """How well each call answers each expected one, found out when it is asked for."""

    def __init__(
        self,
        tools: Toolbox,
        wanted: Sequence[ExpectedCall],
        calls: Sequence[Call],
        comparer: Comparer,
    ) -> None:
        self._wanted = [_want(tools, call) for call in wanted]
        self._calls = calls
        self._names = [tools.name(call.name) for call in calls]
        self._comparer = comparer

    def fits(self, want: int, call: int) -> bool:
        """Tell whether nothing is wrong."""
        return self._names[call] == self._wanted[want].name and not any(self._wrong(want, call))

    def score(self, want: int, call: int) -> float:
        """Return the share of arguments that are right; 0 for another function."""
        if self._names[call] != self._wanted[want].name:
            return 0.0
        keys = self._wanted[want].arguments.keys() | self._calls[call].arguments.keys()
        return 1 - sum(1 for _ in self._wrong(want, call)) / max(1, len(keys))

    def errors(self, want: int, call: int) -> Iterator[CheckError]:
        """Yield all that is wrong."""
        wanted, made = self._wanted[want], self._calls[call]
        if self._names[call] != wanted.name:
            detail = f"{made.name!r}, not {wanted.name!r}"
            yield CheckError(Code.WRONG_FUNCTION, f"calls[{call}].name", detail)
            return
        for key in self._wrong(want, call):
            yield self._comparer.key_error(
                key, made.arguments, wanted.arguments, wanted.schema, f"calls[{call}].arguments"
            )

    def _wrong(self, want: int, call: int) -> Iterator[str]:
        wanted = self._wanted[want]
        arguments = self._calls[call].arguments
        return self._comparer.wrong_keys(arguments, wanted.arguments, wanted.schema)

    def best(self) -> dict[int, int]:
        """Return the call that answers each expected one, by index, so that scores are highest."""
        places = range(len(self._wanted)), range(len(self._calls))
        costs = [[NEARER * abs(i - j) - self.score(i, j) for j in places[1]] for i in places[0]]
        rows, columns = linear_sum_assignment(np.array(costs))
        return dict(zip(rows.tolist(), columns.tolist(), strict=True))


def _want(tools: Toolbox, call: ExpectedCall) -> _Want:
    accepted = {
        name: OneOf(values, name in call.optional) for name, values in call.arguments.items()
    }
    return _Want(tools.name(call.name), accepted, tools.schema(call.name))


def check(
    tools: Sequence[Mapping[str, Json]],
    expected: Expected,
    calls: Sequence[Call] | None,
    alike: Alike | None = None,
) -> Verdict:
    """Judge an answer's calls (None: it holds none) to a request with these OpenAI tools.

    The score is the mean over calls of the share of right arguments, and at most 0.74 where
    anything is wrong. Parallel calls match in any order, as the best assignment; those that
    depend on one another in theirs. `alike` tells paraphrases; without it there are none.
    Raises SchemaError where a schema that matters cannot be interpreted.
    """
    return check_calls(toolbox(tools), expected, calls, alike)


def check_calls(
    tools: Toolbox, expected: Expected, calls: Sequence[Call] | None, alike: Alike | None = None
) -> Verdict:
    """Judge as `check` does, by tools that were read before."""
    if expected.any_call or not expected.calls:
        return _judge_presence(expected, calls)
    if calls is None:
        return Verdict(0.0, (CheckError(Code.NOT_PARSED, "calls", "the answer holds no calls"),))
    if not calls:
        return Verdict(0.0, (_wrong_count(0, len(expected.calls)),))
    try:
        return _judge_calls(tools, expected.calls, calls, Comparer(alike))
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
    tools: Toolbox, wanted: Sequence[ExpectedCall], calls: Sequence[Call], comparer: Comparer
) -> Verdict:
    matrix = _Matrix(tools, wanted, calls, comparer)
    has_order = any(want.after for want in wanted)
    if len(calls) == len(wanted) and not has_order and match_all(len(wanted), matrix.fits):
        return Verdict(1.0)
    taken = {0: 0} if len(calls) == len(wanted) == 1 else matrix.best()
    errors = [error for pair in taken.items() for error in matrix.errors(*pair)]
    if len(calls) != len(wanted):
        errors.append(_wrong_count(len(calls), len(wanted)))
    errors.extend(_order_errors(wanted, taken))
    score = sum(matrix.score(*pair) for pair in taken.items()) / max(len(calls), len(wanted))
    return Verdict(min(score, FLAWED_AT_MOST) if errors else score, tuple(errors))


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
