"""Rows as JSON lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from router_service.core.errors import DataError
from switchcraft_training.datasets.rows import read_rows, write_rows
from switchcraft_training.records import Example, Expected, ExpectedCall, Json, Judged, OneOf


def judged(number: int, value: Json = 1) -> Judged:
    """Return a row whose one call expects a value."""
    request = {"messages": [{"role": "user", "content": f"{number}"}], "tools": []}
    example = Example(f"r{number}", "c", request, "d", "talk")
    call = ExpectedCall("f", {"a": (value, None)}, frozenset({"a"}), frozenset({0}))
    return Judged(example, Expected((call,), any_call=True))


def test_a_file_of_rows_gives_them_back(tmp_path: Path) -> None:
    """Accepted values inside objects and lists, and every field, survive the file."""
    nested = [{"k": OneOf((1, {"l": OneOf(("x",))}), is_optional=True)}]
    rows = [judged(0), judged(1, nested), Judged(judged(2).example, Expected(()))]
    assert write_rows(rows, tmp_path / "rows.jsonl") == 3
    assert list(read_rows(tmp_path / "rows.jsonl")) == rows


def test_a_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    """Where the rows end in an error, the file of before is still there, and nothing else."""
    path = tmp_path / "rows.jsonl"
    write_rows([judged(0)], path)

    def breaking() -> Iterator[Judged]:
        yield judged(1)
        raise DataError(path, 2, "broken")

    with pytest.raises(DataError, match="broken"):
        write_rows(breaking(), path)
    assert list(read_rows(path)) == [judged(0)]
    assert list(tmp_path.iterdir()) == [path]


def test_a_row_that_has_no_json_is_named(tmp_path: Path) -> None:
    """A value that JSON cannot hold ends the writing with the row's id."""
    with pytest.raises(DataError, match="r7 cannot be written as JSON: "):
        write_rows([judged(7, 2**70)], tmp_path / "rows.jsonl")
    assert list(tmp_path.iterdir()) == []
