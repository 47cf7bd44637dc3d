"""Verdicts on tool calls and on whole answers (paper, section 3.2)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import orjson

from switchcraft_training.checking.comparison import (
    CheckError,
    Comparer,
    ErrorCode,
    can_pair_all,
)
from switchcraft_training.checking.parsing import TEXT_PROBLEMS
from switchcraft_training.checking.schema import ANY_SCHEMA, Schema
from switchcraft_training.checking.texts import IsParaphrase
from switchcraft_training.records import (
    Answer,
    Call,
    Example,
    Expected,
    ExpectedCall,
    Json,
    OneOf,
)

CORRECT_FROM = 0.75
"""Least score of a correct answer, as in the paper."""

MAX_SCORE_WITH_ERRORS = 0.74
"""Highest score of an answer with a mistake. A call with any mistake is a wrong action, even if
most of its arguments are correct."""

POSITION_COST = 1e-6
"""Cost for each position between a call and its expected call. It only decides between assignments
with equal scores, in favour of the one that keeps the order."""

_NOT_IN_NAMES = re.compile(r"[^\w-]", re.ASCII)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Score of an answer's calls, and every mistake in them."""

    score: float
    errors: tuple[CheckError, ...] = ()

    @property
    def correct(self) -> bool:
        """Return whether the score reaches the threshold."""
        return self.score >= CORRECT_FROM


class Tool(NamedTuple):
    """A function tool; `api_name` is its name with the characters that provider APIs allow."""

    name: str
    api_name: str
    schema: Schema


class Toolbox:
    """The function tools of a request.

    A tool is also found by names that only differ in characters that provider APIs replace by `_`.
    """

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._tools = list(tools)

    @classmethod
    def from_openai(cls, tools: Sequence[Mapping[str, Json]]) -> Toolbox:
        """Read the function tools of an OpenAI request and skip tools of other types."""
        read = []
        for tool in tools:
            try:
                read.append(tool_from_json(orjson.dumps(tool)))
            except orjson.JSONEncodeError:  # An integer above 64 bits: too rare to need the cache.
                read.append(_decode_tool(tool))
        return cls(filter(None, read))

    def name(self, name: str) -> str:
        """Return the name of the tool that `name` refers to, or else the API form of `name`."""
        tool = self._find(name)
        return api_name(name) if tool is None else tool.name

    def schema(self, name: str) -> Schema:
        """Return the schema of a function's arguments; an unknown function accepts anything."""
        tool = self._find(name)
        return ANY_SCHEMA if tool is None else tool.schema

    def _find(self, name: str) -> Tool | None:
        for tool in self._tools:
            if tool.name == name:
                return tool
        wanted = api_name(name)
        matches = [tool for tool in self._tools if tool.api_name == wanted]
        return matches[0] if len(matches) == 1 else None


def api_name(name: str) -> str:
    """Return a function's name as function-calling APIs accept it: `.` becomes `_`."""
    return _NOT_IN_NAMES.sub("_", name)


@lru_cache(maxsize=1 << 13)
def tool_from_json(tool: bytes) -> Tool | None:
    """Return the function tool in an OpenAI tool's JSON; None for another type of tool.

    Results are cached because the same tool occurs in many queries and for every model.
    """
    return _decode_tool(orjson.loads(tool))


def _decode_tool(tool: Json) -> Tool | None:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return None
    name, parameters = function["name"], function.get("parameters")
    return Tool(name, api_name(name), ANY_SCHEMA if parameters is None else Schema(parameters))


def check_answer(
    example: Example,
    expected: Expected,
    answer: Answer,
    is_paraphrase: IsParaphrase | None = None,
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
    toolbox = tools if isinstance(tools, Toolbox) else Toolbox.from_openai(tools)
    comparison = _CallComparison(toolbox, expected.calls, calls, Comparer(is_paraphrase))
    try:
        return _compare_calls(comparison, expected.calls, calls)
    except RecursionError:
        error = CheckError(ErrorCode.TOO_DEEP, "calls", "nested too deeply to be compared")
        return Verdict(0.0, (error,))


def _compare_calls(
    comparison: _CallComparison, wanted: Sequence[ExpectedCall], calls: Sequence[Call]
) -> Verdict:
    """Return the verdict for the best assignment of calls to expected calls."""
    has_order = any(want.after for want in wanted)
    if len(calls) == len(wanted) and not has_order and can_pair_all(len(wanted), comparison.fits):
        return Verdict(1.0)
    call_of = {0: 0} if len(calls) == len(wanted) == 1 else comparison.best_assignment()
    errors = [error for pair in call_of.items() for error in comparison.errors(*pair)]
    if len(calls) != len(wanted):
        errors.append(_count_error(len(calls), len(wanted)))
    for want, call in call_of.items():
        for earlier in wanted[want].after:
            if earlier in call_of and call_of[earlier] > call:
                name, other = wanted[want].name, wanted[earlier].name
                detail = f"{name!r} was called before {other!r}, on which it depends"
                errors.append(CheckError(ErrorCode.WRONG_ORDER, f"calls[{call}]", detail))
    score = sum(comparison.score(*pair) for pair in call_of.items()) / max(len(calls), len(wanted))
    return Verdict(min(score, MAX_SCORE_WITH_ERRORS) if errors else score, tuple(errors))


def _count_error(found: int, wanted: int) -> CheckError:
    return CheckError(ErrorCode.WRONG_COUNT, "calls", f"{found} calls, not {wanted}")


@dataclass(frozen=True, slots=True)
class _WantedCall:
    """An expected call with the schema of its arguments."""

    name: str
    arguments: Mapping[str, OneOf]
    schema: Schema


class _CallComparison:
    """Comparison of calls with expected calls, by index; only requested pairs are compared."""

    def __init__(
        self,
        tools: Toolbox,
        wanted: Sequence[ExpectedCall],
        calls: Sequence[Call],
        comparer: Comparer,
    ) -> None:
        self._wanted = [
            _WantedCall(
                name=tools.name(call.name),
                arguments={
                    name: OneOf(values, name in call.optional)
                    for name, values in call.arguments.items()
                },
                schema=tools.schema(call.name),
            )
            for call in wanted
        ]
        self._calls = calls
        self._names = [tools.name(call.name) for call in calls]
        self._comparer = comparer

    def fits(self, want: int, call: int) -> bool:
        """Return whether the call at index `call` matches the expected call at index `want`."""
        if self._names[call] != self._wanted[want].name:
            return False
        return not any(self._wrong_arguments(want, call))

    def score(self, want: int, call: int) -> float:
        """Return the share of arguments that are correct; 0 if another function is called."""
        if self._names[call] != self._wanted[want].name:
            return 0.0
        arguments = self._wanted[want].arguments.keys() | self._calls[call].arguments.keys()
        return 1 - sum(1 for _ in self._wrong_arguments(want, call)) / max(1, len(arguments))

    def errors(self, want: int, call: int) -> Iterator[CheckError]:
        """Yield every mistake in a call, compared with the expected call at index `want`."""
        wanted, made = self._wanted[want], self._calls[call]
        if self._names[call] != wanted.name:
            detail = f"{made.name!r}, not {wanted.name!r}"
            yield CheckError(ErrorCode.WRONG_FUNCTION, f"calls[{call}].name", detail)
            return
        path = f"calls[{call}].arguments"
        for name in self._wrong_arguments(want, call):
            yield self._comparer.key_error(
                name, made.arguments, wanted.arguments, wanted.schema, path
            )

    def _wrong_arguments(self, want: int, call: int) -> Iterator[str]:
        wanted = self._wanted[want]
        arguments = self._calls[call].arguments
        return self._comparer.wrong_keys(arguments, wanted.arguments, wanted.schema)

    def best_assignment(self) -> dict[int, int]:
        """Return the index of the call for each expected call, so that the total score is highest.

        If there are more calls than expected calls, or fewer, the surplus stays unassigned.
        """
        # Imported here: SciPy takes 0.3 s to import, and most answers do not need it.
        from scipy.optimize import linear_sum_assignment  # noqa: PLC0415

        wants, calls = range(len(self._wanted)), range(len(self._calls))
        costs = [[POSITION_COST * abs(i - j) - self.score(i, j) for j in calls] for i in wants]
        rows, columns = linear_sum_assignment(np.array(costs))
        return dict(zip(rows.tolist(), columns.tolist(), strict=True))
