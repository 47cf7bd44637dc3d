"""Hermes Function Calling v1 (Nous Research): its three subsets that call functions.

The layout is that of the dataset's card on the Hub: a file a subset, one array each of
`{"id", "conversations": [{"from", "value"}], "tools", ...}`. Without `tools`, they are in the
system text between `<tools>` tags. Calls and results stand in `<tool_call>` and `<tool_response>`
tags, as JSON or as Python writes it, or a mixture.

A record is a turn that calls; the system text is left out, because the request offers the tools.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final

from router_service.core.errors import DataError
from switchcraft_training.datasets.conversations import Conversation, Turn, read_turns
from switchcraft_training.datasets.lines import OnFault, read_array, refuse
from switchcraft_training.datasets.literals import read_json, read_literal, read_objects
from switchcraft_training.datasets.tools import Tools, parameters_of, to_name, to_tools
from switchcraft_training.records import Call, Json, Judged

DATASET = "hermes"
SUBSETS: Final = {
    "func-calling-singleturn.json": "func_calling_singleturn",
    "func-calling.json": "func_calling",
    "glaive-function-calling-5k.json": "glaive_func_calling",
}
"""The files, and the names that the dataset gives to what they hold."""

_TOOLS: Final = re.compile(r"<tools>(.*?)</tools>", re.DOTALL)
_CALL: Final = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_RESULT: Final = re.compile(r"<tool_response>(.*?)(?:</tool_response>|\Z)", re.DOTALL)


def read_source(path: Path, on_fault: OnFault = refuse) -> Iterator[Judged]:
    """Stream the three files of a folder, or one of them; rows that do not parse to `on_fault`.

    A conversation that cannot be read whole gives no record. Raises DataError where a file is
    missing or has another name.
    """
    files = [path / name for name in SUBSETS] if path.is_dir() else [path]
    for file in files:
        if file.name not in SUBSETS:
            raise DataError(file, None, f"is none of {', '.join(SUBSETS)}")
        read = partial(_read_row, category=SUBSETS[file.name])
        yield from chain.from_iterable(read_array(file, read, on_fault))


def _read_row(row: Mapping[str, Json], category: str) -> list[Judged]:
    said = row["conversations"]
    tools = _tools(row, said)
    turns = [turn for message in said for turn in _turns(message["from"], message["value"], tools)]
    # Two subsets hold the same conversations under the same id.
    name = f"{category}_{row['id']}"
    return list(read_turns(Conversation(name, DATASET, category, tools, turns)))


def _tools(row: Mapping[str, Json], said: list[Mapping[str, str]]) -> Tools:
    text = row.get("tools")
    if not text:
        system = "\n".join(m["value"] for m in said if m["from"] == "system")
        # The tags stand empty where the text speaks of them.
        blocks = [block for block in _TOOLS.findall(system) if block.strip()]
        if not blocks:
            raise ValueError("there are no tools, neither in the row nor in its system text")
        text = blocks[0]
    return to_tools(_functions(text.strip()))


def _functions(text: str) -> list[Mapping[str, Json]]:
    """Return functions written as a list, or one after the other."""
    try:
        value = read_literal(text)
    except ValueError:
        return list(read_objects(text))
    return value if isinstance(value, list) else [value]


def _turns(speaker: str, text: str, tools: Tools) -> Iterator[Turn]:
    match speaker:
        case "system":
            return
        case "human":
            yield Turn("user", text.strip())
        case "gpt":
            calls = tuple(_call(block, tools) for block in _CALL.findall(text))
            yield Turn("assistant", _CALL.sub("", text).strip(), calls)
        case "tool":
            for result in _RESULT.findall(text) or [text]:
                yield Turn("tool", result.strip())
        case _:
            raise ValueError(f"{speaker!r} is nobody who speaks in this dataset")


def _call(block: str, tools: Tools) -> Call:
    # Some blocks have their line breaks spelled out.
    value = read_literal(block.strip().removeprefix("\\n").removesuffix("\\n"))
    arguments = value.get("arguments") or {}
    if isinstance(arguments, str):
        arguments = read_json(arguments)
    if "name" in value:
        return Call(to_name(value["name"]), arguments)
    return _with_name_inside(arguments, tools)


def _with_name_inside(arguments: Mapping[str, Json], tools: Tools) -> Call:
    """Read a call whose brace closes too late, so that its name is among its arguments."""
    name = to_name(arguments["name"])
    if name not in parameters_of(tools):
        raise ValueError("the call has no name")
    return Call(name, {key: value for key, value in arguments.items() if key != "name"})
