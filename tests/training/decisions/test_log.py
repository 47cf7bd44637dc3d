"""Reading of a decision log: order of lines, several files and broken lines."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from switchcraft_training.datasets.rows import Quarantine
from switchcraft_training.decisions.log import read_log
from switchcraft_training.errors import DataError
from tests.training.decisions.cases import (
    decision,
    negative_evidence,
    right,
    write_log,
    wrong,
)


def test_feedback_applies_to_decisions_in_other_files(tmp_path: Path) -> None:
    """Files of several writers form one log; the last feedback of a decision counts."""
    write_log(tmp_path, [wrong("a", created=9), negative_evidence("b")], "decisions-1.jsonl")
    write_log(tmp_path, [decision("a"), right("a", created=3)], "decisions-2.jsonl")
    plain = write_log(tmp_path / "old", [decision("b"), decision("a")])
    packed = gzip.compress((plain / "decisions-1.jsonl").read_bytes())
    (tmp_path / "decisions-0.jsonl.gz").write_bytes(packed)
    (tmp_path / "notes.txt").write_text("no lines of the log")

    log = read_log(tmp_path)

    assert {each.id for each in log.decisions} == {"a", "b"}
    assert log.feedback["a"].correct is False
    assert log.evidence == {"b"}


def test_broken_line_is_an_error_or_quarantined(tmp_path: Path) -> None:
    """An invalid line is an error with file and line; with a quarantine, reading continues."""
    folder = write_log(tmp_path / "log", [decision("a"), decision("b")])
    file = folder / "decisions-1.jsonl"
    first, second = file.read_text().splitlines()
    bad = first.replace('"propensity":1.0', '"propensity":0.0')
    file.write_text(f'{{"type": "other"}}\n{bad}\n{second}\n')
    with pytest.raises(DataError, match=r"decisions-1\.jsonl:1: ValueError"):
        read_log(folder)
    quarantine = Quarantine(tmp_path / "bad.jsonl")
    assert [each.id for each in read_log(folder, quarantine.add).decisions] == ["b"]
    quarantine.close()
    assert "decision.propensity: Input should be greater than 0" in quarantine.path.read_text()
    assert quarantine.count == 2
