"""Accepted answers, as each version writes them -> expected calls."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence

from switchcraft_training.checking import python_value
from switchcraft_training.records import Expected, ExpectedCall, Json, OneOf

_SYMMETRIC = frozenset({"math_gcd", "math_lcm", "add_binary_numbers"})
"""Executable functions whose two arguments may change places: execution cannot tell them apart."""

_MENDED_PARAMETERS: Mapping[tuple[str, str], str | None] = {
    ("get_aws_pricing", "operating_system0"): "operating_system",
    ("transfer_to_human_agent", "question"): "statement",
    ("Trains_1_FindTrains", "journey_start_time"): None,
    ("calculate_voltage_difference", "permeability"): None,
    ("bank.calculate_balance", "type"): None,
}
"""Parameters in truths that their functions do not have: a misspelling of one that they have, or
None where they have nothing like it, so that no model can be asked to give it.

From v2 on: live_parallel_9-5-0, live_multiple_964-207-0, live_multiple_862-181-3,
parallel_multiple_12 and parallel_multiple_26.
"""


def read_truth(truth: Json, functions: Sequence[Mapping[str, Json]], version: int) -> Expected:
    """Read an accepted answer to a question that offers these functions.

    v1 has an object of calls, later versions a list, executable categories Python sources.
    Raises ValueError where it calls a function, or from v2 on a parameter, that is not offered.
    """
    offered = {function["name"]: function["parameters"] for function in functions}
    if isinstance(truth, list) and all(isinstance(call, str) for call in truth):
        calls = tuple(map(_executable_call, truth))
    else:
        entries = _entries(truth)
        calls = tuple(_expected_call(name, given, offered, version) for name, given in entries)
    if version > 1:
        refuse_unoffered(calls, offered)
    return Expected(calls)


def refuse_unoffered(calls: Iterable[ExpectedCall], offered: Mapping[str, Json]) -> None:
    """Raise ValueError where a call needs a function or a parameter that is not offered."""
    known = {name.replace(".", "_"): schema for name, schema in offered.items()}
    for call in calls:
        if call.name not in known:
            raise ValueError(f"the truth calls {call.name!r}, which is not offered")
        unknown = call.arguments.keys() - (known[call.name].get("properties") or {}).keys()
        if unknown:
            raise ValueError(
                f"{call.name!r} does not take {sorted(unknown)}, which the truth gives"
            )


def _entries(truth: Json) -> list[tuple[str, Json]]:
    if isinstance(truth, dict):
        return list(_mended(truth).items())
    if isinstance(truth, list):
        return [entry for call in truth for entry in call.items()]
    raise ValueError(f"not an accepted answer: {truth!r}")


def _mended(truth: Mapping[str, Json]) -> dict[str, Json]:
    """Put a parameter that stands beside its call (one row of v1) back into it."""
    entries: dict[str, Json] = {}
    for name, value in truth.items():
        if isinstance(value, list):
            last = next(reversed(entries))
            entries[last] = {**entries[last], name: value}
        else:
            entries[name] = value
    return entries


def _expected_call(
    name: str, arguments: Mapping[str, Json], offered: Mapping[str, Json], version: int
) -> ExpectedCall:
    function = _function_of(name, offered)
    if version > 1:
        arguments = _renamed(function, arguments)
    accepted = {parameter: _accepted(values) for parameter, values in arguments.items()}
    return ExpectedCall(
        name=function.replace(".", "_"),
        arguments={parameter: one.values for parameter, one in accepted.items()},
        optional=frozenset(parameter for parameter, one in accepted.items() if one.is_optional),
    )


def _function_of(name: str, offered: Mapping[str, Json]) -> str:
    """Return which of the question's functions a truth means.

    `_1`, `_2` stand behind a name that v1 calls more than once; one truth leaves out a
    function's number, another its qualifier.
    """
    unnumbered = re.sub(r"[_ ]\d+$", "", name)
    for known in sorted(offered):
        if known in {name, unnumbered}:
            return known
    for known in sorted(offered):
        if re.sub(r"_\d+$", "", known) == name or known.endswith(f".{name}"):
            return known
    raise ValueError(f"the truth calls {name!r}, which is no function of the question")


def _renamed(function: str, arguments: Mapping[str, Json]) -> dict[str, Json]:
    """Return the arguments with the known flaws of their parameters mended."""
    found = {_MENDED_PARAMETERS.get((function, name), name): arguments[name] for name in arguments}
    return {name: values for name, values in found.items() if name is not None}


def _accepted(values: Json) -> OneOf:
    """Read accepted values; `""` among others means that the parameter may be left out."""
    options = values if isinstance(values, list) else [values]
    return OneOf(tuple(_nested(option) for option in options), is_optional="" in options)


def _nested(value: Json) -> Json:
    """Read a value inside a truth: every key of an object has accepted values of its own."""
    if isinstance(value, dict):
        return {key: _accepted(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_nested(item) for item in value]
    return value


def _executable_call(source: str) -> ExpectedCall:
    """Read a truth written as a Python call with keyword arguments."""
    node = ast.parse(source, mode="eval").body
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError(f"not a call with keyword arguments: {source}")
    name = ast.unparse(node.func).replace(".", "_")
    values = {k.arg: python_value(k.value) for k in node.keywords if k.arg is not None}
    if name in _SYMMETRIC:
        return ExpectedCall(name, dict.fromkeys(values, tuple(values.values())))
    return ExpectedCall(name, {parameter: (value,) for parameter, value in values.items()})
