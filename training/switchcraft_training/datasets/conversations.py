"""Functions and calls as datasets describe them, converted to OpenAI tools and expected calls."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from router_service.apis.conversation import Json
from router_service.checker.toolbox import Call, ExpectedCall
from switchcraft_training.records import Expected

Tools = Sequence[Mapping[str, Json]]
"""OpenAI tools, in the order in which they are offered."""

_NOT_ALLOWED_IN_NAME: Final = re.compile(r"[^a-zA-Z0-9_-]")
_MAX_NAME_LENGTH = 64
"""The Chat Completions API accepts names that match `[a-zA-Z0-9_-]{1,64}`."""


def to_name(name: str) -> str:
    """Return a function's name with `_` in place of characters that the API does not accept.

    Raises ValueError if the name is empty or longer than the API accepts.
    """
    if not 0 < len(name) <= _MAX_NAME_LENGTH:
        raise ValueError(f"a function name must have 1 to {_MAX_NAME_LENGTH} characters: {name!r}")
    return _NOT_ALLOWED_IN_NAME.sub("_", name)


def to_tools(functions: Iterable[Mapping[str, Json]]) -> Tools:
    """Return functions, whose `parameters` are JSON Schema, as OpenAI tools without duplicates.

    A function may already be a tool. Raises ValueError if two different functions have the same
    name, because a call could then mean either of them.
    """
    tools: dict[str, dict[str, Json]] = {}
    for given in functions:
        function = given["function"] if given.get("type") == "function" else given
        name = to_name(function["name"])
        parameters = function.get("parameters") or {}
        tool = {
            "type": "function",
            "function": {
                "name": name,
                "description": function.get("description") or "",
                "parameters": {"type": "object", "properties": {}, **parameters},
            },
        }
        if tools.setdefault(name, tool) != tool:
            raise ValueError(f"two different functions have the name {name!r}")
    return list(tools.values())


def parameters_of(tools: Tools) -> dict[str, Mapping[str, Json]]:
    """Return the schema of each tool's parameters, by the tool's name."""
    functions = (tool["function"] for tool in tools)
    return {function["name"]: function.get("parameters") or {} for function in functions}


def expect(calls: Iterable[Call], tools: Tools) -> Expected:
    """Return calls as expected calls, with one accepted value for each argument.

    Raises ValueError if a function or a parameter is not offered.
    """
    expected = tuple(
        ExpectedCall(call.name, {name: (value,) for name, value in call.arguments.items()})
        for call in calls
    )
    check_offered(expected, parameters_of(tools))
    return Expected(expected)


def check_offered(calls: Iterable[ExpectedCall], offered: Mapping[str, Json]) -> None:
    """Raise ValueError if an expected call needs a function or a parameter that is not offered."""
    known = {name.replace(".", "_"): schema for name, schema in offered.items()}
    for call in calls:
        if call.name not in known:
            raise ValueError(f"the expected answer calls {call.name!r}, which is not offered")
        unknown = call.arguments.keys() - (known[call.name].get("properties") or {}).keys()
        if unknown:
            raise ValueError(
                f"the expected answer calls {call.name!r} with the arguments {sorted(unknown)},"
                " which are not parameters of the function"
            )
