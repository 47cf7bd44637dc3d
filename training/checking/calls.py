"""Calls against expected calls: an assignment, a score and a verdict (paper, section 3.2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from scipy.optimize import linear_sum_assignment

from training.checking.defaults import MISSING, documented_default
from training.checking.values import Schema, fits_type, is_accepted, is_equal
from training.records import Call, Expected, ExpectedCall, Json

CORRECT_FROM = 0.75
"""The paper's threshold on the score."""

FLAWED_AT_MOST = 0.74
"""A call with anything wrong in it is a wrong act, however much of it is right."""


class Code(StrEnum):
    """Why a call is rejected."""

    NOT_PARSED = "not_parsed"
    UNEXPECTED_CALL = "unexpected_call"
    WRONG_COUNT = "wrong_count"
    WRONG_FUNCTION = "wrong_function"
    MISSING_PARAMETER = "missing_parameter"
    UNEXPECTED_PARAMETER = "unexpected_parameter"
    WRONG_TYPE = "wrong_type"
    WRONG_VALUE = "wrong_value"


@dataclass(frozen=True, slots=True)
class CheckError:
    """One thing that is wrong: what, at which path of the calls, in words."""

    code: Code
    path: str
    detail: str


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
    errors: tuple[CheckError, ...]


def check(
    tools: Sequence[Mapping[str, Json]], expected: Expected, calls: Sequence[Call] | None
) -> Verdict:
    """Judge an answer's calls (None: it did not parse) to a request with these OpenAI tools.

    The score is the mean over calls of the share of right arguments, and at most 0.74 where
    anything is wrong. Parallel calls match in any order, as the best assignment.
    """
    if not expected.calls:
        return _judge_silence(calls)
    if calls is None:
        return Verdict(0.0, (CheckError(Code.NOT_PARSED, "calls", "the answer holds no calls"),))
    schemas = {name: parameters for name, parameters in map(_signature, tools) if name}
    matches = [
        [_match(want, call, schemas, i) for i, call in enumerate(calls)] for want in expected.calls
    ]
    if not calls:
        return Verdict(0.0, (_wrong_count(0, len(expected.calls)),))
    rows, columns = linear_sum_assignment(
        np.array([[-match.score for match in row] for row in matches])
    )
    chosen = [matches[row][column] for row, column in zip(rows, columns, strict=True)]
    errors = [error for match in chosen for error in match.errors]
    if len(calls) != len(expected.calls):
        errors.append(_wrong_count(len(calls), len(expected.calls)))
    score = sum(match.score for match in chosen) / max(len(calls), len(expected.calls))
    return Verdict(min(score, FLAWED_AT_MOST) if errors else score, tuple(errors))


def fold(name: str) -> str:
    """Return a function's name as a function-calling API takes it: `.` becomes `_`."""
    return name.replace(".", "_")


def _judge_silence(calls: Sequence[Call] | None) -> Verdict:
    """Judge an answer where no tool fits: any call is wrong."""
    if not calls:
        return Verdict(1.0)
    detail = f"called {calls[0].name!r} where no tool fits"
    return Verdict(0.0, (CheckError(Code.UNEXPECTED_CALL, "calls[0]", detail),))


def _wrong_count(found: int, wanted: int) -> CheckError:
    return CheckError(Code.WRONG_COUNT, "calls", f"{found} calls, not {wanted}")


def _signature(tool: Mapping[str, Json]) -> tuple[str, Schema]:
    """Return a function tool's name and parameters; no name for a tool of another kind."""
    function = tool.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return "", {}
    parameters = function.get("parameters")
    return fold(function["name"]), parameters if isinstance(parameters, dict) else {}


def _match(want: ExpectedCall, call: Call, schemas: Mapping[str, Schema], index: int) -> _Match:
    path = f"calls[{index}]"
    if fold(call.name) != fold(want.name):
        detail = f"{call.name!r}, not {want.name!r}"
        return _Match(0.0, (CheckError(Code.WRONG_FUNCTION, f"{path}.name", detail),))
    schema = schemas.get(fold(want.name), {})
    errors = tuple(_argument_errors(want, call, schema, f"{path}.arguments"))
    checked = len(set(want.arguments) | set(call.arguments))
    return _Match(1 - len(errors) / max(1, checked), errors)


def _argument_errors(
    want: ExpectedCall, call: Call, schema: Schema, path: str
) -> Iterator[CheckError]:
    properties = schema.get("properties")
    schemas: Mapping[str, Schema] = properties if isinstance(properties, dict) else {}
    required = schema.get("required") or ()
    for name, accepted in want.arguments.items():
        where, own = f"{path}.{name}", schemas.get(name, {})
        if name not in call.arguments:
            excused = name not in required and _default_is_accepted(own, accepted)
            if name not in want.optional and not excused:
                yield CheckError(Code.MISSING_PARAMETER, where, f"expected {_show(accepted)}")
        elif not is_accepted(call.arguments[name], accepted, own):
            yield _wrong_argument(call.arguments[name], accepted, own, where)
    for name in call.arguments.keys() - want.arguments.keys():
        if not _is_default(call.arguments[name], schemas.get(name)):
            detail = f"{call.arguments[name]!r} where nothing was expected"
            yield CheckError(Code.UNEXPECTED_PARAMETER, f"{path}.{name}", detail)


def _wrong_argument(value: Json, accepted: Sequence[Json], schema: Schema, path: str) -> CheckError:
    if not fits_type(value, schema):
        return CheckError(Code.WRONG_TYPE, path, f"{value!r} is not of type {schema['type']!r}")
    return CheckError(Code.WRONG_VALUE, path, f"{value!r}, not {_show(accepted)}")


def _default_is_accepted(schema: Schema, accepted: Sequence[Json]) -> bool:
    default = documented_default(schema)
    return default is not MISSING and is_accepted(default, accepted, schema)


def _is_default(value: Json, schema: Schema | None) -> bool:
    """Tell whether an argument only spells out what leaving it out would mean."""
    if schema is None:
        return False
    default = documented_default(schema)
    return default is not MISSING and is_equal(value, default, schema)


def _show(accepted: Sequence[Json]) -> str:
    shown = " or ".join(repr(value) for value in accepted[:3])
    return f"{shown} or {len(accepted) - 3} more" if len(accepted) > 3 else shown
