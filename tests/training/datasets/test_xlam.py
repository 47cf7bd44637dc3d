"""xLAM's file: questions with types in Python's words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from switchcraft_training.datasets import xlam
from switchcraft_training.records import Json
from tests.training.datasets.published import calls_of, read, said, write_array

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
    """Return a row as published: tools and answers are texts."""
    return {
        "id": number,
        "query": "What will the weather be?",
        "answers": json.dumps(answers),
        "tools": json.dumps(tools),
    }


def test_a_row_becomes_a_request_with_tools_in_json_schema(tmp_path: Path) -> None:
    """Required is what is neither optional nor has a default; dots in names are underscores."""
    answer = {"name": "weather.forecast", "arguments": {"city": "Rome", "days": 2}}
    write_array(tmp_path / xlam.FILE, row(7, [answer]))

    [judged], faults = read(xlam.read_source, tmp_path)

    assert faults == []
    assert judged.example.id == "xlam_7"
    assert (judged.example.dataset, judged.example.category) == ("xlam", "function_calling_60k")
    assert said(judged) == ["user: What will the weather be?"]
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


def test_parallel_calls_stay_together(tmp_path: Path) -> None:
    """A row with several answers expects them all, one of no arguments among them."""
    answers = [{"name": "ping", "arguments": {}}, {"name": "ping", "arguments": {}}]
    path = write_array(tmp_path / "renamed.json", row(0, answers))
    [judged], _ = read(xlam.read_source, path)
    assert calls_of(judged) == [("ping", {}), ("ping", {})]


def test_a_tool_offered_twice_is_offered_once(tmp_path: Path) -> None:
    """Two equal definitions are one tool."""
    path = write_array(tmp_path / "x.json", row(0, [], [NOTHING, NOTHING]))
    [judged], _ = read(xlam.read_source, path)
    assert judged.example.tool_names == ("ping",)


def test_what_the_card_calls_required_is_required(tmp_path: Path) -> None:
    """A row that has `required` beside a parameter's type means it."""
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
        (row(0, [CALL]) | {"query": None}, "ValueError: the query is not a text"),
        (row(0, [{"name": "ping"}]), "KeyError: 'arguments'"),
        (row(0, [{"name": "ping", "arguments": "{}"}]), "AttributeError: 'str' object has no"),
        (row(0, [{"name": "pong", "arguments": {}}]), "calls 'pong', which is not offered"),
        (
            row(0, [{"name": "ping", "arguments": {"a": 1}}]),
            "gives 'ping' the arguments ['a'], which it does not take",
        ),
        (
            row(0, [CALL], [NOTHING, {**FORECAST, "name": "ping"}]),
            "two functions are called 'ping'",
        ),
        (row(0, [CALL], [{**NOTHING, "name": "p" * 65}]), "has 1 to 64 characters"),
        (
            row(0, [CALL], [{**NOTHING, "parameters": {"a": {"type": "strng"}}}]),
            "is not a known type",
        ),
    ],
)
def test_a_row_that_is_not_as_published_is_a_fault(bad: Json, reason: str, tmp_path: Path) -> None:
    """It is reported with its number and the reason, and the rows around it are read."""
    path = write_array(tmp_path / "x.json", row(1, [CALL]), bad, row(2, [CALL]))
    rows, [fault] = read(xlam.read_source, path)
    assert [judged.example.id for judged in rows] == ["xlam_1", "xlam_2"]
    assert fault.startswith("2: row 2 of the array: ")
    assert reason in fault
