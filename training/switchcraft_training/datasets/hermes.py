"""Reader of Hermes Function Calling v1 (Nous Research): its three subsets with function calls.

The layout is that of the dataset's card on the Hub: one file per subset, each an array of
`{"id", "conversations": [{"from", "value"}], "tools", ...}`. In rows without `tools`, or in which
it is `"null"` or `"[]"`, the tools are in the system text between `<tools>` tags. Calls and results
are in `<tool_call>` and `<tool_response>` tags, written as JSON, as Python literals, or as a
mixture of both.

Each assistant turn with calls gives an example. The system text is left out, because the request
offers the tools.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final

from router_service.apis.conversation import Json
from router_service.checker.toolbox import Call
from switchcraft_training.datasets.conversations import (
    Conversation,
    Tools,
    Turn,
    parameters_of,
    read_turns,
    to_name,
    to_tools,
)
from switchcraft_training.datasets.python_syntax import read_json, read_literal, read_objects
from switchcraft_training.datasets.rows import (
    NothingToJudgeError,
    RowErrorHandler,
    raise_error,
    read_array,
)
from switchcraft_training.errors import DataError
from switchcraft_training.records import Judged

DATASET = "hermes"
SUBSETS: Final = {
    "func-calling-singleturn.json": "func_calling_singleturn",
    "func-calling.json": "func_calling",
    "glaive-function-calling-5k.json": "glaive_func_calling",
}
"""The file names, each with the dataset's name for the subset in that file."""

_NO_TOOLS: Final = frozenset({"", "None", "null", "[]"})
"""Values of `tools` in rows whose tools are only in the system text."""
_TOOLS: Final = re.compile(r"<tools>(.*?)</tools>", re.DOTALL)
_CALL: Final = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_RESULT: Final = re.compile(r"<tool_response>(.*?)(?:</tool_response>|\Z)", re.DOTALL)


def read_source(path: Path, on_error: RowErrorHandler = raise_error) -> Iterator[Judged]:
    """Stream the examples of one of the three files, or of all three files in a directory.

    Rows that cannot be read are passed to `on_error`. A conversation gives no examples unless
    all of it can be read. Raises DataError if a file is missing or has an unknown name.
    """
    files = [path / name for name in SUBSETS] if path.is_dir() else [path]
    for file in files:
        if file.name not in SUBSETS:
            raise DataError(file, None, f"has an unknown name; expected {', '.join(SUBSETS)}")
        read = partial(_read_row, category=SUBSETS[file.name])
        yield from chain.from_iterable(read_array(file, read, on_error))


def _read_row(row: Mapping[str, Json], category: str) -> list[Judged]:
    messages = row["conversations"]
    text = (row.get("tools") or "").strip()
    if text in _NO_TOOLS:
        system = "\n".join(m["value"] for m in messages if m["from"] == "system")
        # If a text only mentions the tags, without listing tools, they are empty.
        blocks = [block for block in _TOOLS.findall(system) if block.strip() not in _NO_TOOLS]
        if not blocks:
            if not any("<tool_call>" in m["value"] for m in messages if m["from"] == "gpt"):
                raise NothingToJudgeError("the row offers no function")
            raise ValueError("there are no tools, neither in `tools` nor in <tools> tags")
        text = blocks[0].strip()
    # The text is a list of functions, a single function, or several functions without a list.
    try:
        value = read_literal(text)
        functions = value if isinstance(value, list) else [value]
    except ValueError:
        functions = list(read_objects(text))
    tools = to_tools(functions)
    turns = [turn for m in messages for turn in _read_turns(m["from"], m["value"], tools)]
    # The category is part of the id because two subsets contain the same conversations with the
    # same id.
    name = f"{category}_{row['id']}"
    return list(read_turns(Conversation(name, DATASET, category, tools, turns)))


def _read_turns(speaker: str, text: str, tools: Tools) -> Iterator[Turn]:
    match speaker:
        case "system":
            return
        case "human":
            yield Turn("user", text.strip())
        case "gpt":
            calls = tuple(_read_call(block, tools) for block in _CALL.findall(text))
            yield Turn("assistant", _CALL.sub("", text).strip(), calls)
        case "tool":
            for result in _RESULT.findall(text) or [text]:
                yield Turn("tool", result.strip())
        case _:
            raise ValueError(f"unknown speaker {speaker!r}")


def _read_call(block: str, tools: Tools) -> Call:
    # In some blocks, a line break around the call is written as two characters, `\` and `n`.
    value = read_literal(block.strip().removeprefix("\\n").removesuffix("\\n"))
    arguments = value.get("arguments") or {}
    if isinstance(arguments, str):
        arguments = read_json(arguments)
    if "name" in value:
        return Call(to_name(value["name"]), arguments)
    # If the brace of the arguments closes too late, the call's name is one of the arguments.
    name = to_name(arguments["name"])
    if name not in parameters_of(tools):
        raise ValueError(f"the call has no name, and {name!r} in its arguments is not a tool")
    return Call(name, {key: value for key, value in arguments.items() if key != "name"})
