"""Files of rows, xLAM, and `switchcraft-train import` with quarantine and counts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from router_service.apis.conversation import Json, parse_conversation
from router_service.checker.comparison import OneOf
from router_service.checker.toolbox import ExpectedCall
from switchcraft_training.cli import main
from switchcraft_training.datasets import xlam
from switchcraft_training.datasets.rows import (
    decode_row,
    encode_row,
    read_array,
    read_lines,
    read_rows,
    write_rows,
)
from switchcraft_training.errors import DataError, RowError
from switchcraft_training.records import Example, Expected, Judged

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


TOOLS = json.dumps([{"name": "f", "description": "F.", "parameters": {"a": {"type": "int"}}}])


def xlam_row(i: int, query: str, value: object = 1) -> dict[str, object]:
    """Return a row as xLAM publishes it."""
    answers = json.dumps([{"name": "f", "arguments": {"a": value}}])
    return {"id": i, "query": query, "tools": TOOLS, "answers": answers}


def write_xlam(folder: Path, *rows: object) -> Path:
    """Write rows as xLAM's file and return its path."""
    path = folder / "xlam_function_calling_60k.json"
    path.write_text(json.dumps(rows, indent=1))
    return path


def load(path: Path) -> Json:
    """Read a JSON file."""
    return json.loads(path.read_bytes())


def test_import_writes_rows_and_reports_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows are written in order without duplicates; the printed and the saved counts agree."""
    rows = [xlam_row(i, f"Query {i}") for i in range(100)]
    write_xlam(tmp_path, *rows, xlam_row(100, " query  7 "))
    out, report = tmp_path / "rows.jsonl", tmp_path / "report.json"
    command = ["import", "xlam", str(tmp_path), "--out", str(out), "--report", str(report)]

    assert main(command) == 0

    assert [j.example.id for j in read_rows(out)] == [f"xlam_{i}" for i in range(100)]
    counts = {"read": 101, "duplicates": 1}
    category = {"dataset": "xlam", "category": "function_calling_60k", **counts}
    assert load(report) == {
        "source": "xlam",
        "path": str(tmp_path),
        **counts,
        "set_aside": {},
        "categories": [category],
    }
    assert capsys.readouterr().out.split()[-4:] == ["xlam", "function_calling_60k", "101", "1"]


def test_unreadable_rows_are_set_aside_and_counted_by_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows with one problem have one reason, whatever their values are; every row is counted."""
    other = json.dumps([{"name": "g", "arguments": {"b": 1}}])
    odd = [{"answers": other}, {"answers": other.replace('"g"', '"h"')}, {"answers": "[oops"}]
    rows = [xlam_row(i, f"Query {i}") for i in range(97)]
    rows += [xlam_row(97 + i, "?") | fields for i, fields in enumerate(odd)]
    path, report = write_xlam(tmp_path, *rows), tmp_path / "report.json"

    assert main(["import", "xlam", str(path), "--report", str(report)]) == 0

    not_offered = "the expected answer calls …, which is not offered"
    assert load(report)["read"] == 97
    assert load(report)["set_aside"] == {not_offered: 2, "a text is not valid JSON": 1}
    assert f"set aside: 2 rows, {not_offered}" in capsys.readouterr().out


def test_too_many_unreadable_rows_stop_the_import(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The limit is 5% unless an option says otherwise; the error counts the reasons."""
    rows = [xlam_row(i, f"Query {i}") for i in range(94)]
    rows += [xlam_row(94 + i, "?") | {"answers": "[oops"} for i in range(6)]
    path, out = write_xlam(tmp_path, *rows), tmp_path / "rows.jsonl"
    command = ["import", "xlam", str(path), "--out", str(out)]

    assert main(command) == 1
    error = capsys.readouterr().err
    assert f"{path}: 6 of 100 rows cannot be read:" in error
    assert "6  a text is not valid JSON" in error
    assert not out.exists()

    assert main([*command, "--max-unreadable", "0.06"]) == 0
    assert len(list(read_rows(out))) == 94


def test_quarantine_keeps_unreadable_rows(tmp_path: Path) -> None:
    """The quarantine has place, reason and text of each unreadable row."""
    bad = xlam_row(1, "b") | {"tools": '[{"name": "g", "description": "", "parameters": {}}]'}
    path = write_xlam(tmp_path, xlam_row(0, "a"), bad, xlam_row(2, "c"), "no object")
    out, quarantine = tmp_path / "rows.jsonl", tmp_path / "bad.jsonl"
    quarantine.write_text('{"from": "an import before"}\n')

    command = ["import", "xlam", str(path), "--out", str(out), "--quarantine", str(quarantine)]
    assert main([*command, "--max-unreadable", "0.5"]) == 0

    assert [j.example.query for j in read_rows(out)] == ["a", "c"]
    before, first, second = map(json.loads, quarantine.read_text().splitlines())
    assert before == {"from": "an import before"}
    assert (first["file"], first["line"], json.loads(first["row"])) == (str(path), 2, bad)
    assert first["reason"] == (
        "row 2 of the array: ValueError: the expected answer calls 'f', which is not offered"
    )
    assert (second["line"], second["row"]) == (4, '"no object"')


def judged(number: int, value: Json = 1) -> Judged:
    """Return a row whose one call expects a value."""
    request = {"messages": [{"role": "user", "content": f"{number}"}], "tools": []}
    example = Example(f"r{number}", "c", request, "d", "talk")
    call = ExpectedCall("f", {"a": (value, None)}, frozenset({"a"}), frozenset({0}))
    return Judged(example, Expected((call,), any_call=True))


def test_integers_beyond_64_bits_are_not_rounded(tmp_path: Path) -> None:
    """A line with such an integer is an error, unless it is within a text."""
    path, faults = tmp_path / "lines.jsonl", list[str]()
    path.write_text('{"a": 18446744073709551617}\n{"a": "18446744073709551617"}\n{"a": 1}\n')
    read = read_lines(path, lambda row: row["a"], lambda error, _: faults.append(error.reason))
    assert list(read) == ["18446744073709551617", 1]
    assert faults == ["an integer is beyond 64 bits"]


def test_rows_survive_writing_and_reading(tmp_path: Path) -> None:
    """Every field, and accepted values inside objects and lists, survive."""
    nested = [{"k": OneOf((1, {"l": OneOf(("x",))}), is_optional=True)}]
    rows = [judged(0), judged(1, nested), Judged(judged(2).example, Expected(()))]
    assert write_rows(rows, tmp_path / "rows.jsonl") == 3
    assert list(read_rows(tmp_path / "rows.jsonl")) == rows


def test_file_appears_only_when_complete(tmp_path: Path) -> None:
    """If an error ends the rows, the previous file is unchanged and no partial file remains."""
    path = tmp_path / "rows.jsonl"
    write_rows([judged(0)], path)

    def breaking() -> Iterator[Judged]:
        yield judged(1)
        raise DataError(path, 2, "broken")

    with pytest.raises(DataError, match="broken"):
        write_rows(breaking(), path)
    assert list(read_rows(path)) == [judged(0)]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("rest", ["", ', {"a"', ', {"a": 2} {"a": 3}]', ", oops]"])
def test_invalid_json_in_array_stops_reading(rest: str, tmp_path: Path) -> None:
    """The rows after that point cannot be separated, so they cannot be quarantined."""
    path = tmp_path / "rows.json"
    path.write_text('[{"a": 1}' + rest)
    with pytest.raises(DataError, match=r"is not valid JSON at row [123] or soon after"):
        list(read_array(path, lambda row: row, lambda *_: None))
