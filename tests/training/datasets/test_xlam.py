"""xLAM's rows as they are published: what the reader makes of them, and which it sets aside."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from router_service.apis.conversation import Json, parse_conversation
from switchcraft_training.datasets import xlam
from switchcraft_training.datasets.rows import decode_row, encode_row
from switchcraft_training.errors import RowError
from switchcraft_training.records import Judged

FORECAST = {
    "name": "weather.forecast",
    "description": "Forecast the weather.",
    "parameters": {
        "city": {"description": "The city.", "type": "str", "default": "Berlin"},
        "days": {"description": "How many days.", "type": "int"},
        "units": {"description": "Of which kind.", "type": "str, optional"},
        "hours": {"description": "", "type": "int", "required": False},
    },
}
PING = {"name": "ping", "description": "Ping.", "parameters": {}}
PINGED = {"name": "ping", "arguments": {}}


def asked(answers: Json, tools: Json = (FORECAST, PING, PING)) -> dict[str, Json]:
    """Return a row of xLAM, with tools and answers as JSON texts."""
    query = "What will the weather be?"
    return {"id": 7, "query": query, "answers": json.dumps(answers), "tools": json.dumps(tools)}


def read(folder: Path, *rows: Json) -> tuple[list[Judged], list[str]]:
    """Publish rows and read them; return the examples, and the errors with their places."""
    (folder / xlam.FILE).write_text(json.dumps(rows))
    faults: list[str] = []

    def note(fault: RowError, _: bytes) -> None:
        faults.append(f"{fault.line}: {fault.problem}")

    return list(xlam.read_source(folder, note)), faults


def test_row_becomes_an_example(tmp_path: Path) -> None:
    """Parameters without `optional`, `required` or a default are required; equal tools are one.

    The row survives being written and read again, and the gateway reads its request completely.
    """
    called = {"name": "weather.forecast", "arguments": {"city": "Rome", "days": 2}}
    [judged], faults = read(tmp_path, asked([called, PINGED]))
    assert not faults
    assert judged.example.id == "xlam_7"
    assert decode_row(json.loads(encode_row(judged))) == judged
    assert not parse_conversation(judged.example.request).unread
    assert [(call.name, call.arguments) for call in judged.expected.calls] == [
        ("weather_forecast", {"city": ("Rome",), "days": (2,)}),
        ("ping", {}),
    ]
    forecast, ping = (tool["function"] for tool in judged.example.request["tools"])
    assert forecast["name"] == "weather_forecast"
    assert forecast["parameters"] == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "The city.", "default": "Berlin"},
            "days": {"type": "integer", "description": "How many days."},
            "units": {"type": "string", "description": "Of which kind."},
            "hours": {"type": "integer", "description": ""},
        },
        "required": ["days"],
    }
    assert ping["parameters"] == {"type": "object", "properties": {}, "required": []}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (asked([]) | {"query": None}, "the query is not a string, or is blank"),
        (asked([{"name": "ping"}]), "KeyError: 'arguments'"),
        (asked([{"name": "book", "arguments": {}}]), "which is not offered"),
        (asked([{"name": "ping", "arguments": {"a": 1}}]), "which are not parameters"),
        (asked([], [{**PING, "name": "p" * 65}]), "must have 1 to 64 characters"),
        (asked([], [PING, {**PING, "description": ""}]), "two different functions have the name"),
        (asked([], [{**PING, "parameters": {"a": {"type": "strng"}}}]), "is not a known type"),
    ],
)
def test_row_in_other_form_is_set_aside(bad: Json, reason: str, tmp_path: Path) -> None:
    """It gives one error with its place and no example; the next row is read."""
    rows, [fault] = read(tmp_path, bad, asked([PINGED]))
    assert len(rows) == 1
    assert fault.startswith("1: ")
    assert reason in fault
