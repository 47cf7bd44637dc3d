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


def test_row_without_json_representation_is_named(tmp_path: Path) -> None:
    """The error has the id of the row whose value JSON cannot represent."""
    with pytest.raises(DataError, match="r7 cannot be written as JSON: "):
        write_rows([judged(7, 2**70)], tmp_path / "rows.jsonl")
    assert list(tmp_path.iterdir()) == []
