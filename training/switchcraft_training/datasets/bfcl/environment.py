"""The leaderboard's simulated tools: calls are replayed, and their order is tried out."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

import orjson

from switchcraft_training.datasets.bfcl.files import package_data, package_missing
from switchcraft_training.records import Call, Json

_BACKENDS: Final = "bfcl_eval.constants.executable_backend_config"
_RANDOM: Final = "_random"
"""Generators compare by identity; what they gave shows in the results."""

Tools = Mapping[str, Any]
"""Simulated tools by the names of their classes."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a turn's calls returned, and for each the calls that must come before it."""

    results: tuple[str, ...]
    after: tuple[frozenset[int], ...]


class Environment:
    """The simulated tools of one conversation, whose state its calls change."""

    def __init__(
        self, classes: Sequence[str], config: Mapping[str, Json], *, long_context: bool
    ) -> None:
        self._tools: Tools = {
            name: _tool(name, config.get(name, {}), long_context) for name in classes
        }

    def play(self, calls: Sequence[Call]) -> Outcome:
        """Make a turn's calls; the next turn's start from the state that they leave."""
        results, tools = _run(self._tools, calls, range(len(calls)))
        after = tuple(self._ancestors(calls, i, results, tools) for i in range(len(calls)))
        self._tools = tools
        return Outcome(tuple(results[i] for i in range(len(calls))), after)

    def _ancestors(
        self,
        calls: Sequence[Call],
        index: int,
        results: Mapping[int, str],
        tools: Tools,
    ) -> frozenset[int]:
        """Return the calls that `index` must follow, by moving it before each earlier one.

        What it depends on moves with it. A call that can be exchanged with them all, so that
        every result and the last state stay as they are, is free of them.
        """
        block, passed = [index], list(range(index + 1, len(calls)))
        for earlier in reversed(range(index)):
            order = [*range(earlier), *block, earlier, *passed]
            other_results, other_tools = _run(self._tools, calls, order)
            if other_results == results and _state(other_tools) == _state(tools):
                passed.insert(0, earlier)
            else:
                block.insert(0, earlier)
        return frozenset(block) - {index}


def documents(class_name: str) -> list[Mapping[str, Json]]:
    """Read the documents of a simulated tool's functions."""
    name = _load(_BACKENDS).MULTI_TURN_FUNC_DOC_FILE_MAPPING[class_name]
    lines = (package_data() / "multi_turn_func_doc" / name).read_bytes().splitlines()
    return [orjson.loads(line) for line in lines]


def announcement() -> str:
    """Return what the user says when functions that were missing are offered."""
    prompts = _load("bfcl_eval.constants.default_prompts")
    return str(prompts.DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC)


def _tool(class_name: str, config: Json, long_context: bool) -> Any:  # noqa: ANN401
    """Return a simulated tool in its initial state."""
    backends = _load(_BACKENDS)
    tool = getattr(_load(backends.CLASS_FILE_PATH_MAPPING[class_name]), class_name)()
    if class_name not in backends.STATELESS_CLASSES:
        tool._load_scenario(deepcopy(config), long_context=long_context)
    return tool


def _load(module: str) -> Any:  # noqa: ANN401
    """Import a module of the package; raises ConfigError where it cannot be."""
    try:
        return importlib.import_module(module)
    except ImportError as exc:
        raise package_missing() from exc


def _run(tools: Tools, calls: Sequence[Call], order: Sequence[int]) -> tuple[dict[int, str], Tools]:
    """Make calls in an order; return results by call, and the tools as they are then."""
    tools = deepcopy(tools)
    return {index: _make(tools, calls[index]) for index in order}, tools


def _make(tools: Tools, call: Call) -> str:
    """Make a call, the last tool that has it answering, and word the result as they do."""
    method = next(
        getattr(tool, call.name)
        for tool in reversed(list(tools.values()))
        if hasattr(tool, call.name)
    )
    try:
        result = method(**deepcopy(dict(call.arguments)))
    except Exception as exc:  # noqa: BLE001 - whatever a simulated tool raises is its answer
        return f"Error during execution: {exc}"
    if not isinstance(result, dict):
        return str(result)
    try:
        return json.dumps(result)
    except TypeError:
        return str(result)


def _state(tools: Tools) -> dict[str, dict[str, Any]]:
    return {
        name: {key: value for key, value in vars(tool).items() if key != _RANDOM}
        for name, tool in tools.items()
    }
