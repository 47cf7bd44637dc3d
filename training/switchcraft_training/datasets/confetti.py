"""ConFETTI (Amazon): turns of conversations between people, in the files of the leaderboard's v2.

The dataset's README says that its files are made for the leaderboard. A line a turn,
`{"id", "dialog_id", "question": [message], "function": [...]}`, is in
`data/BFCL_v2_conversationsclean.json`, and the accepted calls in the file of that name in
`possible_answer`, as public surveys and evaluations of it quote them. A message has `role`,
`content` and `content_type`. No public copy shows how calls and results inside a conversation are
written: read are OpenAI's way, which the leaderboard sends on as it is, and Bedrock Converse's, and
a row with any other is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import orjson

from router_service.core.errors import DataError
from switchcraft_training.datasets.bfcl.schema import to_tools
from switchcraft_training.datasets.bfcl.truths import read_truth
from switchcraft_training.datasets.conversations import Turn, to_messages
from switchcraft_training.datasets.lines import OnFault, read_lines, refuse
from switchcraft_training.datasets.literals import read_json
from switchcraft_training.datasets.tools import to_name
from switchcraft_training.records import Call, Example, Json, Judged

DATASET = "confetti"
CATEGORY = "conversations"
FILE = "BFCL_v2_conversationsclean.json"
_VERSION = 2
"""Which of the leaderboard's layouts the files have."""

_TURN_NUMBER: Final = re.compile(r"_\d+$")


def read_source(path: Path, on_fault: OnFault = refuse) -> Iterator[Judged]:
    """Stream the turns of the repository's folder, its `data`, or the file itself.

    Rows that do not parse go to `on_fault`. Raises DataError where a file is missing.
    """
    file = _file(path)
    answers = file.with_name("possible_answer") / file.name
    truths = dict(read_lines(answers, lambda row: (row["id"], row["ground_truth"]), on_fault))
    yield from read_lines(file, lambda row: _read_row(row, truths), on_fault)


def _file(path: Path) -> Path:
    found = [file for file in (path, path / FILE, path / "data" / FILE) if file.is_file()]
    if not found:
        raise DataError(path, None, f"holds no data/{FILE}")
    return found[0]


def _read_row(row: Mapping[str, Json], truths: Mapping[str, Json]) -> Judged:
    if row["id"] not in truths:
        raise ValueError(f"there is no accepted answer to {row['id']!r}")
    functions = row["function"]
    request = {
        "messages": to_messages(turn for said in row["question"] for turn in _turns(said)),
        "tools": to_tools(functions, CATEGORY, _VERSION),
    }
    # The number behind a dialogue's name counts its turns, which must not be parted.
    dialogue = _TURN_NUMBER.sub("", row["dialog_id"])
    example = Example(row["id"], CATEGORY, request, DATASET, dialogue)
    return Judged(example, read_truth(truths[row["id"]], functions, _VERSION))


def _turns(message: Mapping[str, Json]) -> Iterator[Turn]:
    role, content = message["role"], message.get("content")
    if role not in {"user", "assistant", "tool"}:
        raise ValueError(f"{role!r} is nobody who speaks in this dataset")
    if isinstance(content, list):
        yield from _converse(role, content)
    elif message.get("content_type", "text") != "text":
        raise ValueError(f"content of the type {message['content_type']!r} is not known here")
    else:
        calls = tuple(_openai(made["function"]) for made in message.get("tool_calls") or ())
        yield Turn(role, content or "", calls)


def _openai(function: Mapping[str, Json]) -> Call:
    return Call(to_name(function["name"]), read_json(function["arguments"]))


def _converse(role: str, blocks: list[Mapping[str, Json]]) -> Iterator[Turn]:
    """Yield the turns of Converse's blocks: results, which the user's side gives, and one more."""
    text = "\n".join(block["text"] for block in blocks if "text" in block)
    calls = tuple(
        Call(to_name(block["toolUse"]["name"]), block["toolUse"]["input"])
        for block in blocks
        if "toolUse" in block
    )
    for block in blocks:
        if "toolResult" in block:
            yield Turn("tool", "\n".join(map(_result, block["toolResult"]["content"])))
        elif not block.keys() & {"text", "toolUse"}:
            raise ValueError(f"a block of {sorted(block)} is not known here")
    if text or calls:
        yield Turn("assistant" if role == "assistant" else "user", text, calls)


def _result(block: Mapping[str, Json]) -> str:
    return block["text"] if "text" in block else orjson.dumps(block["json"]).decode()
