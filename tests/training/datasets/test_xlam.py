"""xLAM's file: questions with Python type names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from router_service.apis.conversation import Json
from switchcraft_training.datasets import xlam
from tests.training.datasets.published import calls_of, messages_of, read, write_array

FORECAST = {
    "name": "weather.forecast",
    "description": "Forecast the weather.",
    "parameters": {
        "city": {"description": "The city.", "type": "str", "default": "Berlin"},
        "days": {"description": "How many days.", "type": "int"},
        "units": {"description": "Of which kind.", "type": "str, optional"},
        "hours": {"description": "At which hours.", "type": "List[int], optional", "default": []},
    },
}
NOTHING = {"name": "ping", "description": "Ping.", "parameters": {}}


def row(number: int, answers: Json, tools: Json = (FORECAST, NOTHING)) -> dict[str, Json]:
    """Return a row as published, with tools and answers as JSON texts."""
    return {
        "id": number,
        "query": "What will the weather be?",
        "answers": json.dumps(answers),
        "tools": json.dumps(tools),
    }


def test_row_becomes_request_with_json_schema_tools(tmp_path: Path) -> None:
    """Parameters without `optional` or a default are required; dots in names become underscores."""
    answer = {"name": "weather.forecast", "arguments": {"city": "Rome", "days": 2}}
    write_array(tmp_path / xlam.FILE, row(7, [answer]))

    [judged], faults = read(xlam.read_source, tmp_path)

    assert faults == []
    assert judged.example.id == "xlam_7"
    assert (judged.example.dataset, judged.example.category) == ("xlam", "function_calling_60k")
    assert messages_of(judged) == ["user: What will the weather be?"]
    assert calls_of(judged) == [("weather_forecast", {"city": "Rome", "days": 2})]
    forecast, ping = (tool["function"] for tool in judged.example.request["tools"])
    assert forecast == {
        "name": "weather_forecast",
        "description": "Forecast the weather.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "The city.", "default": "Berlin"},
                "days": {"type": "integer", "description": "How many days."},
                "units": {"type": "string", "description": "Of which kind."},
                "hours": {
                    "type": "array",
                    "items": {"type": "integer"},
                    "description": "At which hours.",
                    "default": [],
                },
            },
            "required": ["days"],
        },
    }
    assert ping["parameters"] == {"type": "object", "properties": {}, "required": []}


def test_required_field_decides(tmp_path: Path) -> None:
    """The field `required` of a parameter takes precedence over its type."""
    parameters = {
        "a": {"description": "", "type": "int", "required": False},
        "b": {"description": "", "type": "int", "required": True, "default": 1},
    }
    tool = {"name": "f", "description": "", "parameters": parameters}
    path = write_array(tmp_path / "x.json", row(0, [], [tool]))
    [judged], _ = read(xlam.read_source, path)
    assert judged.example.request["tools"][0]["function"]["parameters"]["required"] == ["b"]


CALL = {"name": "ping", "arguments": {}}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (row(0, [CALL]) | {"answers": "[{'name'"}, "JSONDecodeError: Expecting property name"),
        (row(0, [CALL]) | {"query": None}, "ValueError: the query is not a string, or is blank"),
        (row(0, [{"name": "ping"}]), "KeyError: 'arguments'"),
        (row(0, [{"name": "ping", "arguments": "{}"}]), "AttributeError: 'str' object has no"),
        (row(0, [{"name": "pong", "arguments": {}}]), "calls 'pong', which is not offered"),
        (
            row(0, [{"name": "ping", "arguments": {"a": 1}}]),
            "calls 'ping' with the arguments ['a'], which are not parameters",
        ),
        (
            row(0, [CALL], [NOTHING, {**FORECAST, "name": "ping"}]),
            "two different functions have the name 'ping'",
        ),
        (row(0, [CALL], [{**NOTHING, "name": "p" * 65}]), "must have 1 to 64 characters"),
        (
            row(0, [CALL], [{**NOTHING, "parameters": {"a": {"type": "strng"}}}]),
            "is not a known type",
        ),
    ],
)
def test_row_in_other_format_is_an_error(bad: Json, reason: str, tmp_path: Path) -> None:
    """The error has the row's number and the reason, and the other rows are read."""
    path = write_array(tmp_path / "x.json", row(1, [CALL]), bad, row(2, [CALL]))
    rows, [fault] = read(xlam.read_source, path)
    assert [judged.example.id for judged in rows] == ["xlam_1", "xlam_2"]
    assert fault.startswith("2: row 2 of the array: ")
    assert reason in fault
