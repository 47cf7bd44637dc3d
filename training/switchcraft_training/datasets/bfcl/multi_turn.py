"""Multi-turn conversations: one example for each turn, made by replaying the ground truth.

As in section 4.1 of the paper and its appendix on the datasets, example k contains the user's turns
so far and the calls of the earlier turns with their results, and expects the calls of turn k.
"""

from __future__ import annotations

import ast
import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import orjson

from router_service.apis.conversation import Json
from router_service.checker.toolbox import Call, ExpectedCall
from switchcraft_training.datasets.bfcl.format import (
    LeaderboardFile,
    convert_functions,
    package_data,
    package_missing_error,
)
from switchcraft_training.datasets.conversations import check_offered
from switchcraft_training.datasets.rows import RowErrorHandler, read_lines
from switchcraft_training.records import Example, Expected, Judged

_BACKENDS: Final = "bfcl_eval.constants.executable_backend_config"
_PROMPTS: Final = "bfcl_eval.constants.default_prompts"
_RANDOM: Final = "_random"
"""A tool's attribute that holds a random generator. It is left out when states are compared,
because generators compare by identity. What a generator returned is visible in the results."""

Functions = Mapping[str, Mapping[str, Json]]
"""Descriptions of functions by name, in the order in which the functions are offered."""

SimulatedTools = Mapping[str, Any]
"""Simulated tools by the names of their classes."""


@dataclass(frozen=True, slots=True)
class TurnResult:
    """The results of a turn's calls, and for each call the indices of calls that it depends on."""

    results: tuple[str, ...]
    after: tuple[frozenset[int], ...]


def read_conversations(
    file: LeaderboardFile, truths: Mapping[str, Json], on_error: RowErrorHandler
) -> Iterator[Judged]:
    """Read a file of conversations, with one example for each turn.

    If a turn cannot be read, the whole conversation is passed to `on_error`. Raises ConfigError if
    `bfcl-eval`, which contains the simulated tools, is not installed.
    """
    rows = read_lines(
        file.path, lambda row: list(_read_conversation(row, truths[row["id"]], file)), on_error
    )
    return chain.from_iterable(rows)


def _read_conversation(
    row: Mapping[str, Json], sources: Sequence[Sequence[str]], file: LeaderboardFile
) -> Iterator[Judged]:
    environment = Environment(
        row["involved_classes"],
        row["initial_config"],
        long_context=file.category == "multi_turn_long_context",
    )
    excluded = row.get("excluded_function", ())
    functions: dict[str, Mapping[str, Json]] = {}
    for class_name in row["involved_classes"]:
        file_name = _import_module(_BACKENDS).MULTI_TURN_FUNC_DOC_FILE_MAPPING[class_name]
        path = package_data() / "multi_turn_func_doc" / file_name
        for function in map(orjson.loads, path.read_bytes().splitlines()):
            if function["name"] not in excluded:
                functions[function["name"]] = function
    # The turn from which on each initially missing function is offered. A function that an earlier
    # turn calls cannot have been missing (multi_turn_miss_func_49).
    offered_from = {
        name: int(turn)
        for turn, names in row.get("missed_function", {}).items()
        for name in names
        if not any(source.startswith(f"{name}(") for source in chain(*sources[: int(turn)]))
    }
    history: list[Json] = []
    for turn, (messages, turn_sources) in enumerate(zip(row["question"], sources, strict=True)):
        offered = {name: f for name, f in functions.items() if name not in offered_from}
        offered |= {name: functions[name] for name, at in offered_from.items() if at <= turn}
        calls = [_parse_call(source, functions) for source in turn_sources]
        result = environment.play(calls)
        if messages:
            history.extend(messages)
        else:
            # The turn only announces the functions that were missing.
            text = str(_import_module(_PROMPTS).DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC)
            history.append({"role": "user", "content": text})
        tools = convert_functions(list(offered.values()), file.category, file.version)
        request = {"messages": list(history), "tools": tools}
        name = f"{row['id']}:{turn}"
        example = Example(name, file.category, request, file.dataset, conversation=row["id"])
        yield Judged(example, _expect_calls(calls, result, offered))
        # Each message has one call, as in an agent's steps, because a call's arguments may depend
        # on the result of the previous call.
        for index, (call, text) in enumerate(zip(calls, result.results, strict=True)):
            identifier = f"call_{turn}_{index}"
            arguments = orjson.dumps(call.arguments).decode()
            function = {"name": call.name, "arguments": arguments}
            tool_call = {"id": identifier, "type": "function", "function": function}
            history.append({"role": "assistant", "content": None, "tool_calls": [tool_call]})
            history.append({"role": "tool", "tool_call_id": identifier, "content": text})


def _parse_call(source: str, functions: Functions) -> Call:
    """Parse a call with literal arguments; the function's description names positional ones."""
    node = ast.parse(source, mode="eval").body
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise TypeError(f"not a call: {source}")
    if node.func.id not in functions:
        raise ValueError(
            f"the installed bfcl-eval offers no function {node.func.id!r} in this conversation: "
            "use multi-turn files from the same release as the package"
        )
    parameters = functions[node.func.id]["parameters"]["properties"]
    named = {str(keyword.arg): keyword.value for keyword in node.keywords}
    given = dict(zip(parameters, node.args, strict=False)) | named
    if len(given) != len(node.args) + len(node.keywords):
        raise ValueError(f"more arguments than {node.func.id!r} has parameters: {source}")
    return Call(node.func.id, {name: ast.literal_eval(value) for name, value in given.items()})


def _expect_calls(calls: Sequence[Call], result: TurnResult, offered: Functions) -> Expected:
    """Return a turn's calls as expected calls; arguments equal to documented defaults are optional.

    Raises ValueError if a call or an argument is not offered.
    """
    schemas = {name: function["parameters"] for name, function in offered.items()}
    expected: list[ExpectedCall] = []
    for call, after in zip(calls, result.after, strict=True):
        nodes = schemas.get(call.name, {}).get("properties", {})
        defaults = {name: node["default"] for name, node in nodes.items() if "default" in node}
        optional = frozenset(
            name
            for name, value in call.arguments.items()
            if name in defaults and repr(value) == repr(defaults[name])
        )
        arguments = {name: (value,) for name, value in call.arguments.items()}
        expected.append(ExpectedCall(call.name, arguments, optional, after))
    check_offered(expected, schemas)
    return Expected(tuple(expected))


def _import_module(name: str) -> Any:  # noqa: ANN401
    """Import a module of `bfcl-eval`; raises ConfigError if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as exc:
        raise package_missing_error() from exc


class Environment:
    """The simulated tools of one conversation, and the state that their calls change."""

    def __init__(
        self, classes: Sequence[str], config: Mapping[str, Json], *, long_context: bool
    ) -> None:
        backends = _import_module(_BACKENDS)
        tools: dict[str, Any] = {}
        for name in classes:
            module = _import_module(backends.CLASS_FILE_PATH_MAPPING[name])
            tools[name] = getattr(module, name)()
            if name not in backends.STATELESS_CLASSES:
                scenario = deepcopy(config.get(name, {}))
                tools[name]._load_scenario(scenario, long_context=long_context)
        self._tools: SimulatedTools = tools

    def play(self, calls: Sequence[Call]) -> TurnResult:
        """Make a turn's calls and return their results; keep the new state for the next turn."""
        indices = range(len(calls))
        results, tools = _run_calls(self._tools, calls, indices)
        after: list[frozenset[int]] = []
        for index in indices:
            # Try to move the call, together with the calls that it depends on, before each earlier
            # call. If this leaves every result and the final state unchanged, the call does not
            # depend on that earlier call.
            block, passed = [index], list(range(index + 1, len(calls)))
            for earlier in reversed(range(index)):
                order = [*range(earlier), *block, earlier, *passed]
                other_results, other_tools = _run_calls(self._tools, calls, order)
                if other_results == results and _state_of(other_tools) == _state_of(tools):
                    passed.insert(0, earlier)
                else:
                    block.insert(0, earlier)
            after.append(frozenset(block) - {index})
        self._tools = tools
        return TurnResult(tuple(results[i] for i in indices), tuple(after))


def _run_calls(
    tools: SimulatedTools, calls: Sequence[Call], order: Sequence[int]
) -> tuple[dict[int, str], SimulatedTools]:
    """Make calls in an order on a copy of the tools; return the results by call, and the copy."""
    tools = deepcopy(tools)
    results: dict[int, str] = {}
    for index in order:
        call = calls[index]
        # If several tools have the function, the last one is used. The wording of results is that
        # of bfcl-eval.
        method = next(
            getattr(tool, call.name)
            for tool in reversed(list(tools.values()))
            if hasattr(tool, call.name)
        )
        try:
            result = method(**deepcopy(dict(call.arguments)))
        except Exception as exc:  # noqa: BLE001 - any error of a simulated tool is its result
            results[index] = f"Error during execution: {exc}"
            continue
        try:
            results[index] = json.dumps(result) if isinstance(result, dict) else str(result)
        except TypeError:
            results[index] = str(result)
    return results, tools


def _state_of(tools: SimulatedTools) -> dict[str, dict[str, Any]]:
    return {
        name: {key: value for key, value in vars(tool).items() if key != _RANDOM}
        for name, tool in tools.items()
    }
