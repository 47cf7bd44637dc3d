"""Functions as datasets describe them -> OpenAI tools, and the calls made of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from switchcraft_training.datasets.bfcl.truths import refuse_unoffered
from switchcraft_training.records import Call, Expected, ExpectedCall, Json

Tools = Sequence[Mapping[str, Json]]
"""OpenAI tools, in the order in which they are offered."""

_FOREIGN: Final = re.compile(r"[^a-zA-Z0-9_-]")
_LONGEST_NAME = 64
"""The Chat Completions API takes names of `[a-zA-Z0-9_-]{1,64}`."""


def to_name(name: str) -> str:
    """Return a function's name with `_` for what the API does not take.

    Raises ValueError where the name is empty or longer than the API takes.
    """
    if not 0 < len(name) <= _LONGEST_NAME:
        raise ValueError(f"a function's name has 1 to {_LONGEST_NAME} characters: {name!r}")
    return _FOREIGN.sub("_", name)


def to_tools(functions: Iterable[Mapping[str, Json]]) -> Tools:
    """Return OpenAI tools of functions whose `parameters` are JSON Schema.

    A function may already be a tool. One offered twice is offered once; raises ValueError where
    two have one name, because a call could then mean either.
    """
    tools: dict[str, dict[str, Json]] = {}
    for given in functions:
        tool = _to_tool(given["function"] if given.get("type") == "function" else given)
        name = tool["function"]["name"]
        if tools.setdefault(name, tool) != tool:
            raise ValueError(f"two functions are called {name!r}")
    return list(tools.values())


def expect(calls: Iterable[Call], tools: Tools) -> Expected:
    """Return calls as what is expected, each argument with one accepted value.

    Raises ValueError where a function or a parameter is not offered.
    """
    expected = tuple(
        ExpectedCall(call.name, {name: (value,) for name, value in call.arguments.items()})
        for call in calls
    )
    refuse_unoffered(expected, parameters_of(tools))
    return Expected(expected)


def parameters_of(tools: Tools) -> dict[str, Mapping[str, Json]]:
    """Return the schema of each tool's parameters, by the tool's name."""
    return {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}


def _to_tool(function: Mapping[str, Json]) -> dict[str, Json]:
    parameters = function.get("parameters") or {}
    return {
        "type": "function",
        "function": {
            "name": to_name(function["name"]),
            "description": function.get("description") or "",
            "parameters": {"type": "object", "properties": {}, **parameters},
        },
    }
