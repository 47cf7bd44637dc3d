"""Helpers for the readers' tests: files in the published formats, and checks of the rows read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from router_service.apis.conversation import Json, parse_conversation
from router_service.checker.toolbox import Call
from switchcraft_training.checking import check
from switchcraft_training.datasets.rows import RowErrorHandler, decode_row, encode_row
from switchcraft_training.errors import RowError
from switchcraft_training.records import Judged

Reader = Callable[[Path, RowErrorHandler], Iterator[Judged]]


def read(reader: Reader, path: Path) -> tuple[list[Judged], list[str]]:
    """Read a path; return the rows, and the errors of the rows that cannot be read.

    Every row must survive being written and read again, its request must be one that the gateway
    reads completely, and the checker must accept the expected calls.
    """
    faults: list[str] = []

    def note(fault: RowError, _: bytes) -> None:
        if not fault.is_readable:
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
    """Write rows as one JSON array, one row a line, and return the path."""
    path.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
    return path


def calls_of(judged: Judged) -> list[tuple[str, dict[str, Json]]]:
    """Return the expected calls, each argument with its first accepted value."""
    return [(c.name, {p: v[0] for p, v in c.arguments.items()}) for c in judged.expected.calls]


def messages_of(judged: Judged) -> list[str]:
    """Return a request's messages in short: the role, and the text or the calls."""
    return list(map(_short, judged.example.request["messages"]))


def _short(message: Mapping[str, Json]) -> str:
    made = [call["function"] for call in message.get("tool_calls", ())]
    calls = [f"{function['name']}({function['arguments']})" for function in made]
    return " ".join([f"{message['role']}:", *filter(None, [message["content"], *calls])])
