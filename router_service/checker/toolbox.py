"""Tools of a request, the calls of an answer, and the comparison of calls by the tools' schemas."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from router_service.apis.conversation import Json
from router_service.checker.comparison import (
    Comparer,
    OneOf,
    can_pair_all,
)
from router_service.checker.parameter_schema import ANY_SCHEMA, Schema
from router_service.core.errors import SchemaError

_NOT_IN_NAMES = re.compile(r"[^\w-]", re.ASCII)


@dataclass(frozen=True, slots=True)
class Call:
    """A call that a model made."""

    name: str
    arguments: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class ExpectedCall:
    """A call that should be made: accepted values by parameter, and optional parameters.

    `after` holds the indices of expected calls that must come before this one, because it uses
    their results or side effects. Without it, calls may come in any order.
    """

    name: str
    arguments: Mapping[str, tuple[Json, ...]]
    optional: frozenset[str] = frozenset()
    after: frozenset[int] = frozenset()


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
    # Most names are plain, and a substitution takes four times as long as this check.
    is_plain = name.isascii() and name.isidentifier()
    return name if is_plain else _NOT_IN_NAMES.sub("_", name)


def read_function(function: Mapping[str, Json]) -> Tool:
    """Return the tool of a function's definition, which must have a name."""
    name, parameters = function["name"], function.get("parameters")
    return Tool(name, api_name(name), ANY_SCHEMA if parameters is None else Schema(parameters))


class WantedCall(NamedTuple):
    """An expected call with the schema of its arguments."""

    name: str
    arguments: Mapping[str, OneOf]
    schema: Schema


class CallComparison:
    """Comparison of calls with expected calls, by index; only requested pairs are compared."""

    def __init__(
        self,
        tools: Toolbox,
        wanted: Sequence[ExpectedCall],
        calls: Sequence[Call],
        comparer: Comparer,
    ) -> None:
        self.wanted = [
            WantedCall(
                tools.name(call.name),
                {n: OneOf(values, n in call.optional) for n, values in call.arguments.items()},
                tools.schema(call.name),
            )
            for call in wanted
        ]
        self.calls = calls
        self.names = [tools.name(call.name) for call in calls]
        self.comparer = comparer

    def fits(self, want: int, call: int) -> bool:
        """Return whether the call at index `call` matches the expected call at index `want`."""
        if self.names[call] != self.wanted[want].name:
            return False
        return not any(self.wrong_arguments(want, call))

    def wrong_arguments(self, want: int, call: int) -> Iterator[str]:
        """Yield the wrong, missing and unexpected arguments of a call of the expected function."""
        wanted = self.wanted[want]
        arguments = self.calls[call].arguments
        return self.comparer.wrong_keys(arguments, wanted.arguments, wanted.schema)


def same_calls(tools: Toolbox, calls: Sequence[Call], others: Sequence[Call]) -> bool:
    """Return whether two answers make the same calls, in any order.

    There must be as many calls in both, and each call must pair with one of the same tool and with
    equal arguments under the tool's schema. An argument may be left out only if it equals its
    default. Two calls are also the same if this holds only with their roles exchanged, because
    the rules for expected and given arguments differ. Two calls differ if the tool's schema cannot
    be interpreted, or if their arguments are nested too deeply to be compared. Arguments that
    violate the schema may differ even if they are equal.
    """
    if len(calls) != len(others):
        return False
    comparer = Comparer()
    forwards = CallComparison(tools, [_expect(call) for call in calls], others, comparer)
    backwards = CallComparison(tools, [_expect(other) for other in others], calls, comparer)
    try:
        return can_pair_all(
            len(calls),
            lambda call, other: (
                _fits_safely(forwards, call, other) or _fits_safely(backwards, other, call)
            ),
        )
    except RecursionError:  # The pairing itself recurses once per call in the worst case.
        return False


def _expect(call: Call) -> ExpectedCall:
    """Return the expectation of exactly this call."""
    return ExpectedCall(call.name, {name: (value,) for name, value in call.arguments.items()})


def _fits_safely(comparison: CallComparison, want: int, call: int) -> bool:
    """Return whether a call fits, and False if the comparison is impossible."""
    try:
        return comparison.fits(want, call)
    except (RecursionError, SchemaError):
        return False
