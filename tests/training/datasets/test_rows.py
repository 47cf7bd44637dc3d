"""Files of rows: JSON lines and arrays with every error reported, and judged examples."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from router_service.apis.conversation import Json
from router_service.checker.comparison import OneOf
from router_service.checker.toolbox import ExpectedCall
from switchcraft_training.datasets.rows import read_array, read_lines, read_rows, write_rows
from switchcraft_training.errors import DataError
from switchcraft_training.records import Example, Expected, Judged


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
