"""What tests of the readers share: files as datasets publish them, and what comes of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from router_service.core.errors import DataError
from router_service.core.messages import parse_conversation
from switchcraft_training.checking import check
from switchcraft_training.datasets.lines import RowErrorHandler
from switchcraft_training.datasets.rows import decode_row, encode_row
from switchcraft_training.records import Call, Json, Judged

Reader = Callable[[Path, RowErrorHandler], Iterator[Judged]]


def read(reader: Reader, path: Path) -> tuple[list[Judged], list[str]]:
    """Return what a reader makes of a path: its rows, and why others were none.

    Each row is one that the rest of training can take: a file of rows gives it back as it is, its
    request is one that the gateway reads whole, and the checker finds the expected calls correct.
    """
    faults: list[str] = []

    def note(fault: DataError, _: bytes) -> None:
        faults.append(f"{fault.line}: {fault.problem}")

    rows = list(reader(path, note))
    for judged in rows:
        assert decode_row(json.loads(encode_row(judged))) == judged
        assert not parse_conversation(judged.example.request).unread
        request, expected = judged.example.request, judged.expected
        first = [Call(c.name, {p: v[0] for p, v in c.arguments.items()}) for c in expected.calls]
        assert check(request["tools"], expected, first).correct
    return rows, faults


def write_array(path: Path, *rows: object) -> Path:
    """Write rows as one JSON array, a line each, and return the path."""
    path.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
    return path


def calls_of(judged: Judged) -> list[tuple[str, dict[str, Json]]]:
    """Return the expected calls, each argument by its first accepted value."""
    return [(c.name, {p: v[0] for p, v in c.arguments.items()}) for c in judged.expected.calls]


def said(judged: Judged) -> list[str]:
    """Return the messages of a request in short: who, and what they say or call."""
    return list(map(_short, judged.example.request["messages"]))


def _short(message: Mapping[str, Json]) -> str:
    made = [call["function"] for call in message.get("tool_calls", ())]
    calls = [f"{function['name']}({function['arguments']})" for function in made]
    return " ".join([f"{message['role']}:", *filter(None, [message["content"], *calls])])
