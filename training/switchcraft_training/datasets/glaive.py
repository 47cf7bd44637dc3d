"""Glaive Function Calling v2: conversations as two texts, with the paper's two cleanings.

The layout is that of the dataset on the Hub: `glaive-function-calling-v2.json` is one array of
`{"system", "chat"}`. `system` ends in the functions, one JSON object after the other, or in none;
`chat` is a text with a mark before each turn, and a call as `<functioncall> {"name": "f",
"arguments": '{"a": 1}'}`: JSON but for the quotes around the arguments.

A record is a turn that calls. The cleanings are those of the paper's appendix on the datasets:
a placeholder `None` becomes what the schema has for it, and an empty text for a parameter that may
be left out is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Final

from switchcraft_training.datasets.conversations import Conversation, Turn, read_turns
from switchcraft_training.datasets.lines import OnFault, read_array, refuse
from switchcraft_training.datasets.literals import read_json, read_literal, read_objects
from switchcraft_training.datasets.tools import Tools, parameters_of, to_name, to_tools
from switchcraft_training.records import Call, Json, Judged

DATASET = "glaive"
CATEGORY = "function_calling_v2"
FILE = "glaive-function-calling-v2.json"

_MARK: Final = re.compile(
    r"(?:\A|\n|<\|endoftext\|>)\s*(USER|ASSISTANT|FUNCTION RESPONSE)\s*:", re.MULTILINE
)
_END: Final = "<|endoftext|>"
_CALL_MARK: Final = "<functioncall>"
_CALL: Final = re.compile(
    r"\s*\{\s*\"name\"\s*:\s*\"(?P<name>[^\"]+)\"\s*"
    r"(?:,\s*\"arguments\"\s*:\s*(?P<arguments>.*?)\s*)?\}\s*",
    re.DOTALL,
)
_NO_ARGUMENTS: Final = frozenset({"", "None", "null"})


def read_source(path: Path, on_fault: OnFault = refuse) -> Iterator[Judged]:
    """Stream the file, or the one of its name in a folder; rows that do not parse to `on_fault`.

    A conversation that cannot be read whole gives no record.
    """
    file = path / FILE if path.is_dir() else path
    return chain.from_iterable(read_array(file, _read_row, on_fault))


def _read_row(row: Mapping[str, Json]) -> list[Judged]:
    tools = _tools(row["system"])
    if not tools:
        return []
    turns = list(_turns(row["chat"], tools))
    name = f"{DATASET}_{_digest(row)}"
    return list(read_turns(Conversation(name, DATASET, CATEGORY, tools, turns)))


def _digest(row: Mapping[str, str]) -> str:
    """Return what names a conversation, wherever in the file it stands: the rows have no id."""
    return blake2b(f"{row['system']}\0{row['chat']}".encode(), digest_size=8).hexdigest()


def _tools(system: str) -> Tools:
    """Return the functions of a system text; none where it offers none."""
    start = system.find("{")
    return to_tools(read_objects(system[start:].strip())) if start >= 0 else []


def _turns(chat: str, tools: Tools) -> Iterator[Turn]:
    before, *parts = _MARK.split(chat)
    if before.strip() or not parts:
        raise ValueError(f"the chat does not start with a turn: {chat[:40]!r}")
    for speaker, said in zip(parts[::2], parts[1::2], strict=True):
        text = said.replace(_END, "").strip()
        if speaker == "USER":
            yield Turn("user", text)
        elif speaker == "FUNCTION RESPONSE":
            yield Turn("tool", text)
        else:
            words, *calls = text.split(_CALL_MARK)
            yield Turn("assistant", words.strip(), tuple(_call(call, tools) for call in calls))


def _call(text: str, tools: Tools) -> Call:
    match = _CALL.fullmatch(text)
    if match is None:
        raise ValueError(f"not a call: {text[:80]!r}")
    name = to_name(match["name"])
    return Call(
        name, _cleaned(_arguments(match["arguments"] or ""), parameters_of(tools).get(name, {}))
    )


def _arguments(text: str) -> Mapping[str, Json]:
    """Read arguments: an object, or its text in quotes of either kind, one of which may be missing.

    Quotes inside are as they are, or escaped for the quotes around them.
    """
    bare = text.removeprefix("'").removesuffix("'").strip()
    if bare in _NO_ARGUMENTS:
        return {}
    for candidate in (bare, bare.replace("\\'", "'"), bare.replace('\\"', '"')):
        try:
            return _object(read_json(candidate))
        except ValueError:
            continue
    return _object(read_literal(bare))


def _object(value: Json) -> Mapping[str, Json]:
    if isinstance(value, str):
        value = read_json(value)
    if not isinstance(value, dict):
        raise ValueError(f"the arguments are no object: {value!r}")  # noqa: TRY004 - a bad row
    return value


def _cleaned(arguments: Mapping[str, Json], schema: Mapping[str, Json]) -> dict[str, Json]:
    required = frozenset(schema.get("required") or ())
    nodes = schema.get("properties") or {}
    filled = {
        name: _filled(name, nodes.get(name) or {}) if value is None else value
        for name, value in arguments.items()
        if value is not None or name in required
    }
    return {name: value for name, value in filled.items() if value != "" or name in required}


def _filled(name: str, schema: Mapping[str, Json]) -> Json:
    """Return what stands for a required argument that is given as `None`."""
    if "default" in schema:
        return schema["default"]
    empty: Mapping[str, Json] = {"object": {}, "array": []}
    if schema.get("type") not in empty:
        raise ValueError(f"the required argument {name!r} is None")
    return empty[schema["type"]]
