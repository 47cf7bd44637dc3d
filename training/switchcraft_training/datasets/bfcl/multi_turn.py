"""Multi-turn conversations -> one record a turn, by replaying their ground truth.

Section 4.1 of the paper and its appendix on the datasets: record k has the user's turns so far,
with the calls of the earlier ones and what they returned, and expects the calls of the k-th.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import orjson

from switchcraft_training.datasets.bfcl.environment import (
    Environment,
    Outcome,
    announcement,
    documents,
)
from switchcraft_training.datasets.bfcl.files import LeaderboardFile
from switchcraft_training.datasets.bfcl.schema import to_tools
from switchcraft_training.datasets.bfcl.truths import refuse_unoffered
from switchcraft_training.datasets.lines import OnFault, read_lines
from switchcraft_training.records import Call, Example, Expected, ExpectedCall, Json, Judged

Functions = Mapping[str, Mapping[str, Json]]
"""Documents of functions by name, in the order in which they are offered."""


def read_conversations(
    file: LeaderboardFile, truths: Mapping[str, Json], on_fault: OnFault
) -> Iterator[Judged]:
    """Read a file of conversations, one record a turn; all turns or none of a conversation.

    Raises ConfigError where `bfcl-eval`, which has the simulated tools, is absent.
    """
    rows = read_lines(
        file.path, lambda row: list(_read_conversation(row, truths[row["id"]], file)), on_fault
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
    functions = _functions(row)
    held_back = _held_back(row, sources)
    history: list[Json] = []
    for turn, (messages, written) in enumerate(zip(row["question"], sources, strict=True)):
        offered = _offered(functions, held_back, turn)
        calls = [_call(source, functions) for source in written]
        outcome = environment.play(calls)
        history.extend(messages or [{"role": "user", "content": announcement()}])
        request = {
            "messages": list(history),
            "tools": to_tools(list(offered.values()), file.category, file.version),
        }
        name = f"{row['id']}:{turn}"
        example = Example(name, file.category, request, file.dataset, conversation=row["id"])
        yield Judged(example, _expected(calls, outcome, offered))
        history.extend(_made(turn, calls, outcome))


def _functions(row: Mapping[str, Json]) -> Functions:
    """Return the functions of a conversation's tools, but for those that would be second ways."""
    excluded = row.get("excluded_function", ())
    found = chain.from_iterable(map(documents, row["involved_classes"]))
    return {function["name"]: function for function in found if function["name"] not in excluded}


def _held_back(row: Mapping[str, Json], sources: Sequence[Sequence[str]]) -> dict[str, int]:
    """Return the turn at which each missing function is offered.

    A function that an earlier turn calls cannot have been missing (multi_turn_miss_func_49).
    """
    turns = {
        name: int(turn) for turn, names in row.get("missed_function", {}).items() for name in names
    }
    return {
        name: turn
        for name, turn in turns.items()
        if not any(source.startswith(f"{name}(") for source in chain(*sources[:turn]))
    }


def _offered(functions: Functions, held_back: Mapping[str, int], turn: int) -> Functions:
    """Return the functions that a turn offers, those that came later at the end."""
    at_first = {name: f for name, f in functions.items() if name not in held_back}
    return at_first | {name: functions[name] for name, at in held_back.items() if at <= turn}


def _call(source: str, functions: Functions) -> Call:
    """Read a call of literals, its positional arguments named by the function's document."""
    node = ast.parse(source, mode="eval").body
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise TypeError(f"not a call: {source}")
    if node.func.id not in functions:
        raise ValueError(
            f"the installed bfcl-eval simulates no {node.func.id!r} here: "
            "read the multi-turn files of the same release"
        )
    parameters = functions[node.func.id]["parameters"]["properties"]
    named = {str(keyword.arg): keyword.value for keyword in node.keywords}
    given = dict(zip(parameters, node.args, strict=False)) | named
    if len(given) != len(node.args) + len(node.keywords):
        raise ValueError(f"more arguments than {node.func.id!r} has parameters: {source}")
    return Call(node.func.id, {name: ast.literal_eval(value) for name, value in given.items()})


def _expected(calls: Sequence[Call], outcome: Outcome, offered: Functions) -> Expected:
    schemas = {name: function["parameters"] for name, function in offered.items()}
    expected = tuple(
        ExpectedCall(
            name=call.name,
            arguments={name: (value,) for name, value in call.arguments.items()},
            optional=_at_default(call, schemas.get(call.name, {})),
            after=after,
        )
        for call, after in zip(calls, outcome.after, strict=True)
    )
    refuse_unoffered(expected, schemas)
    return Expected(expected)


def _at_default(call: Call, schema: Mapping[str, Json]) -> frozenset[str]:
    """Return the parameters whose argument is their documented default."""
    defaults = {
        name: node["default"]
        for name, node in schema.get("properties", {}).items()
        if "default" in node
    }
    return frozenset(
        name
        for name, value in call.arguments.items()
        if name in defaults and repr(value) == repr(defaults[name])
    )


def _made(turn: int, calls: Sequence[Call], outcome: Outcome) -> Iterator[Json]:
    """Yield a turn's calls and results as messages, one after the other, as an agent's steps.

    Not several at once: what a call was given may be what the one before it returned.
    """
    for index, (call, result) in enumerate(zip(calls, outcome.results, strict=True)):
        identifier = f"call_{turn}_{index}"
        arguments = orjson.dumps(call.arguments).decode()
        function = {"name": call.name, "arguments": arguments}
        made = {"id": identifier, "type": "function", "function": function}
        yield {"role": "assistant", "content": None, "tool_calls": [made]}
        yield {"role": "tool", "tool_call_id": identifier, "content": result}
