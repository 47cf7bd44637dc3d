"""Journals keep every written entry, however the writer ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel

from router_service.core.errors import ConfigError, DataError
from switchcraft_training.review.journal import Journal, read_entries

WRITER = """
import sys
from pathlib import Path
from tests.training.review.test_journal import Note
from switchcraft_training.review.journal import Journal
with Journal(Path(sys.argv[1]), Note) as journal:
    while True:
        journal.append(Note(number=len(journal.entries) + 1, text="\\u2028é" * 500))
        print(len(journal.entries), flush=True)
"""


class Note(BaseModel):
    """An entry."""

    number: int
    text: str = ""


def test_kill_loses_no_acknowledged_entry(tmp_path: Path) -> None:
    """Five writers are killed with SIGKILL; all acknowledged entries are there, in order."""
    path, counts = tmp_path / "notes.jsonl", [0]
    for acknowledged in (1, 3, 40, 200, 7):
        command = [sys.executable, "-c", WRITER, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            lines = [writer.stdout.readline() for _ in range(acknowledged)]
            writer.send_signal(signal.SIGKILL)
            lines += writer.stdout.readlines()
        acknowledged_count = int([line for line in lines if line.endswith("\n")][-1])
        numbers = [note.number for note in read_entries(path, Note)]
        assert numbers == list(range(1, len(numbers) + 1))
        assert acknowledged_count <= len(numbers) <= acknowledged_count + 1
        assert acknowledged_count > counts[-1]
        counts.append(len(numbers))


def test_incomplete_last_line_is_ignored_and_overwritten(tmp_path: Path) -> None:
    """A kill leaves an incomplete line, which was never acknowledged and damages no later entry."""
    path = tmp_path / "notes.jsonl"
    path.write_bytes(b'{"number":1}\n{"numb')
    assert [note.number for note in read_entries(path, Note)] == [1]
    with Journal(path, Note) as journal:
        journal.append(Note(number=2))
    assert [note.number for note in read_entries(path, Note)] == [1, 2]


def test_invalid_line_is_an_error(tmp_path: Path) -> None:
    """A complete line that does not parse is an error with file and line, and is not ignored."""
    path = tmp_path / "notes.jsonl"
    path.write_bytes(b'{"number":1}\n{"number":"x"}\n')
    with pytest.raises(DataError, match=r"notes\.jsonl:2: number: "):
        read_entries(path, Note)


def test_second_writer_is_refused(tmp_path: Path) -> None:
    """A second writer is refused while the first has the journal open, and allowed afterwards."""
    path = tmp_path / "notes.jsonl"
    with Journal(path, Note), pytest.raises(ConfigError, match="another process"):
        Journal(path, Note)
    with Journal(path, Note) as journal:
        assert journal.entries == []
