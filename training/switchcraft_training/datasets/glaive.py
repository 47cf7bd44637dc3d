"""Reader of Glaive Function Calling v2, with the paper's two cleaning steps.

The layout is that of the dataset on the Hub: `glaive-function-calling-v2.json` is one array of
`{"system", "chat"}`. `system` ends with the functions, as JSON objects that follow one another, or
has none. `chat` is a text with a mark before each turn. A call is written as
`<functioncall> {"name": "f", "arguments": '{"a": 1}'}`, which is JSON except for the quotes around
the arguments.

Each assistant turn with calls gives an example. The cleaning steps come from the paper's appendix
on the datasets. An argument `None` of a required parameter is replaced by the schema's default, or
by an empty object or array. If an optional parameter has the argument `None` or an empty text, the
argument is removed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from hashlib import blake2b
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
from switchcraft_training.records import Judged

DATASET = "glaive"
CATEGORY = "function_calling_v2"
FILE = "glaive-function-calling-v2.json"

_TURN_MARK: Final = re.compile(
    r"(?:\A|\n|<\|endoftext\|>)\s*(USER|ASSISTANT|FUNCTION RESPONSE)\s*:", re.MULTILINE
)
_END_MARK: Final = "<|endoftext|>"
_CALL_MARK: Final = "<functioncall>"
_CALL: Final = re.compile(
    r"\s*\{\s*\"name\"\s*:\s*\"(?P<name>[^\"]+)\"\s*"
    r"(?:,\s*\"arguments\"\s*:\s*(?P<arguments>.*?)\s*)?\}\s*",
    re.DOTALL,
)
_NO_ARGUMENTS: Final = frozenset({"", "None", "null"})
_EMPTY_VALUES: Final[Mapping[str, Json]] = {"object": {}, "array": []}


def read_source(path: Path, on_error: RowErrorHandler = raise_error) -> Iterator[Judged]:
    """Stream the dataset from its file, or from the directory that contains it.

    Rows that cannot be read are passed to `on_error`. A conversation gives no examples unless
    all of it can be read.
    """
    file = path / FILE if path.is_dir() else path
    return chain.from_iterable(read_array(file, _read_row, on_error))


def _read_row(row: Mapping[str, Json]) -> list[Judged]:
    system, chat = row["system"], row["chat"]
    start = system.find("{")
    tools = to_tools(read_objects(system[start:].strip())) if start >= 0 else []
    if not tools:
        raise NothingToJudgeError("the row offers no function")
    before, *parts = _TURN_MARK.split(chat)
    if before.strip() or not parts:
        raise ValueError(f"the chat does not start with a turn's mark (USER:): {chat[:40]!r}")
    turns: list[Turn] = []
    for speaker, raw in zip(parts[::2], parts[1::2], strict=True):
        text = raw.replace(_END_MARK, "").strip()
        if speaker == "USER":
            turns.append(Turn("user", text))
        elif speaker == "FUNCTION RESPONSE":
            turns.append(Turn("tool", text))
        else:
            words, *calls = text.split(_CALL_MARK)
            made = tuple(_read_call(call, tools) for call in calls)
            turns.append(Turn("assistant", words.strip(), made))
    # The rows have no id, so a hash of the content identifies a conversation.
    digest = blake2b(f"{system}\0{chat}".encode(), digest_size=8).hexdigest()
    name = f"{DATASET}_{digest}"
    return list(read_turns(Conversation(name, DATASET, CATEGORY, tools, turns)))


def _read_call(text: str, tools: Tools) -> Call:
    match = _CALL.fullmatch(text)
    if match is None:
        raise ValueError(f"not a call with a name and arguments: {text[:80]!r}")
    name = to_name(match["name"])
    arguments = _read_arguments(match["arguments"] or "")
    schema = parameters_of(tools).get(name, {})
    required = frozenset(schema.get("required") or ())
    nodes = schema.get("properties") or {}
    cleaned: dict[str, Json] = {}
    for parameter, given in arguments.items():
        value = given
        if value is None and parameter in required:
            node = nodes.get(parameter) or {}
            if "default" in node:
                value = node["default"]
            elif node.get("type") in _EMPTY_VALUES:
                value = _EMPTY_VALUES[node["type"]]
            else:
                raise ValueError(f"the required argument {parameter!r} is None and has no default")
        elif value is None:
            continue
        if value != "" or parameter in required:
            cleaned[parameter] = value
    return Call(name, cleaned)


def _read_arguments(text: str) -> Mapping[str, Json]:
    """Return the arguments of a call: a JSON object, or an object written inside quotes.

    The quotes may be single or double, and the opening or closing single quote may be missing.
    Quotes inside the quoted object may be escaped or not.
    """
    bare = text.removeprefix("'").removesuffix("'").strip()
    if bare in _NO_ARGUMENTS:
        return {}
    for candidate in (bare, bare.replace("\\'", "'"), bare.replace('\\"', '"')):
        try:
            return _require_object(read_json(candidate))
        except ValueError:
            continue
    return _require_object(read_literal(bare))


def _require_object(value: Json) -> Mapping[str, Json]:
    if isinstance(value, str):
        value = read_json(value)
    if not isinstance(value, dict):
        raise ValueError(f"the arguments are not an object: {value!r}")  # noqa: TRY004 - a bad row
    return value
