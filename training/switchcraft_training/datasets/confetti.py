"""ConFETTI (Amazon): turns of conversations between people, in the format of leaderboard v2.

The dataset's README says that its files are made for the leaderboard. Each line of
`data/BFCL_v2_conversationsclean.json` is a turn,
`{"id", "dialog_id", "question": [message], "function": [...]}`. The accepted calls are in the file
of the same name in `possible_answer`, in the form that public surveys and evaluations of the
dataset quote. A message has `role`, `content` and `content_type`. No public copy shows how calls
and results inside a conversation are written. This module reads the format of OpenAI, which the
leaderboard sends unchanged, and that of Bedrock Converse. It rejects rows in any other format.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import orjson

from router_service.apis.conversation import Json
from router_service.checker.toolbox import Call
from switchcraft_training.datasets.bfcl.format import convert_functions, read_truth
from switchcraft_training.datasets.conversations import Turn, to_messages, to_name
from switchcraft_training.datasets.python_syntax import read_json
from switchcraft_training.datasets.rows import RowErrorHandler, raise_error, read_lines
from switchcraft_training.errors import DataError
from switchcraft_training.records import Example, Judged

DATASET = "confetti"
CATEGORY = "conversations"
FILE = "BFCL_v2_conversationsclean.json"
_LEADERBOARD_VERSION = 2

_TURN_NUMBER: Final = re.compile(r"_\d+$")


def read_source(path: Path, on_error: RowErrorHandler = raise_error) -> Iterator[Judged]:
    """Stream the turns in the repository's directory, its `data`, or the file itself.

    Rows that cannot be read are passed to `on_error`. Raises DataError if a file is missing.
    """
    candidates = (path, path / FILE, path / "data" / FILE)
    file = next((candidate for candidate in candidates if candidate.is_file()), None)
    if file is None:
        raise DataError(path, None, f"contains no data/{FILE}")
    answers = file.with_name("possible_answer") / file.name
    truths = dict(read_lines(answers, lambda row: (row["id"], row["ground_truth"]), on_error))
    yield from read_lines(file, partial(_read_row, truths=truths), on_error)


def _read_row(row: Mapping[str, Json], truths: Mapping[str, Json]) -> Judged:
    if row["id"] not in truths:
        raise ValueError(f"there is no accepted answer to {row['id']!r}")
    functions = row["function"]
    request = {
        "messages": to_messages(turn for each in row["question"] for turn in _read_turns(each)),
        "tools": convert_functions(functions, CATEGORY, _LEADERBOARD_VERSION),
    }
    # Without the turn's number at the end, all turns of a dialogue have the same id, so that they
    # stay in the same part of a split.
    dialogue = _TURN_NUMBER.sub("", row["dialog_id"])
    example = Example(row["id"], CATEGORY, request, DATASET, dialogue)
    return Judged(example, read_truth(truths[row["id"]], functions, _LEADERBOARD_VERSION))


def _read_turns(message: Mapping[str, Json]) -> Iterator[Turn]:
    role, content = message["role"], message.get("content")
    if role not in {"user", "assistant", "tool"}:
        raise ValueError(f"unknown role {role!r}")
    if not isinstance(content, list):
        if message.get("content_type", "text") != "text":
            raise ValueError(f"unknown content type {message['content_type']!r}")
        functions = [call["function"] for call in message.get("tool_calls") or ()]
        calls = tuple(Call(to_name(f["name"]), read_json(f["arguments"])) for f in functions)
        yield Turn(role, content or "", calls)
        return
    # Blocks of Bedrock Converse become the tool results, if any, and then at most one message.
    text = "\n".join(block["text"] for block in content if "text" in block)
    uses = [block["toolUse"] for block in content if "toolUse" in block]
    calls = tuple(Call(to_name(use["name"]), use["input"]) for use in uses)
    for block in content:
        if "toolResult" in block:
            results = [
                part["text"] if "text" in part else orjson.dumps(part["json"]).decode()
                for part in block["toolResult"]["content"]
            ]
            yield Turn("tool", "\n".join(results))
        elif not block.keys() & {"text", "toolUse"}:
            raise ValueError(f"unknown block with the keys {sorted(block)}")
    if text or calls:
        yield Turn("assistant" if role == "assistant" else "user", text, calls)
