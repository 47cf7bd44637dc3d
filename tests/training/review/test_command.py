"""`switchcraft-train review`: from flagged rows to corrected rows."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from switchcraft_training.cli import main
from switchcraft_training.datasets.corrections import (
    CorrectionKind,
    ErrorCategory,
    apply_patch,
    last_utterance,
)
from switchcraft_training.datasets.rows import read_rows, write_rows
from switchcraft_training.records import Judged
from switchcraft_training.review.journal import Journal, Ledger, Step, read_entries
from switchcraft_training.review.session import Session, entries_of_round
from switchcraft_training.review.verify import Finding
from tests.training.review.cases import CHRISTMAS, FINDINGS, ROWS, SAVINGS, UTTERANCE, written


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Write the benchmark and a critic's findings."""
    with Journal(tmp_path / "review" / "findings.jsonl", Finding) as journal:
        for found in FINDINGS:
            journal.append(found)
    return written(tmp_path)


def session(rows: Path, journal: Journal[Step], round_: int) -> Session:
    """Return a reviewer's round on the benchmark."""
    ledger = Ledger(journal.entries)
    found = entries_of_round(read_rows(rows), rows, FINDINGS, ledger, round_)
    return Session(tuple(found), journal, "ann", round_)


def decide(rows: Path) -> None:
    """Decide on everything in both rounds."""
    with Journal(rows.parent / "review" / "decisions.jsonl", Step) as journal:
        first = session(rows, journal, 1)
        first.categorize(ErrorCategory.LOGICAL)
        first.accept()
        first.accept()
        first.skip()
        first.decline()
        second = session(rows, journal, 2)
        assert [entry.id for entry in second.entries] == ["unknown"]
        second.edit_truth(())


def export(rows: Path) -> int:
    """Run the command that writes the patch."""
    return main(["review", "export", str(rows), "--out", str(rows.parent / "review")])


def test_decisions_become_a_patch_that_corrects_the_rows(
    rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Accepted and edited changes are applied, declined ones are not, and both are counted."""
    decide(rows)
    assert export(rows) == 0
    patch = rows.parent / "review" / "patch.jsonl"
    corrected = {judged.example.id: judged for judged in apply_patch(read_rows(rows), patch)}
    assert corrected["savings"].expected.calls[0].arguments == {"account": ("S-204",)}
    assert last_utterance(corrected["christmas"].example) == UTTERANCE
    assert corrected["christmas"].expected == CHRISTMAS.expected
    assert corrected["unknown"].expected.calls == ()
    same = {"right", "spelling", "garbled"}
    assert {j.example.id for j in ROWS if corrected[j.example.id] == j} == same
    lines = [json.loads(line) for line in patch.read_text().splitlines()]
    assert [(x["id"], x["kind"], x["category"], x["round"], x["reviewer"]) for x in lines] == [
        ("savings", "truth", "logical_or_state_tracking_error", 1, "ann"),
        ("christmas", "input", "temporal_ambiguity", 1, "ann"),
        ("unknown", "truth", "wrong_function", 2, "ann"),
    ]
    shown = capsys.readouterr().out
    assert "6 rows verified, 4 flagged, 0 of them open in round 1" in shown
    assert "3 corrections of 3 rows (50.0% of those verified)" in shown
    assert "6000 + 600 tokens, cost unknown" in shown


def test_table_counts_by_round_category_and_decision(
    rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each decision counts once, under its chosen category; the table fits into 80 columns."""
    decide(rows)
    export(rows)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[:-1])) <= 80
    end = next(i for i, line in enumerate(lines) if "rows verified" in line)
    table = [line.rsplit(maxsplit=5) for line in lines[2:end] if line.strip()]
    assert [(row[0].strip(), *map(int, row[1:])) for row in table] == [
        ("round 1", 2, 1, 1, 0, 2),
        ("wrong function", 0, 0, 1, 0, 0),
        ("incorrect parameter value", 0, 1, 0, 0, 0),
        ("logical or state tracking error", 1, 0, 0, 0, 1),
        ("temporal ambiguity", 1, 0, 0, 0, 1),
        ("round 2", 0, 0, 0, 1, 1),
        ("wrong function", 0, 0, 0, 1, 1),
        ("both rounds", 2, 1, 1, 1, 3),
        ("wrong function", 0, 0, 1, 1, 1),
        ("incorrect parameter value", 0, 1, 0, 0, 0),
        ("logical or state tracking error", 1, 0, 0, 0, 1),
        ("temporal ambiguity", 1, 0, 0, 0, 1),
    ]


def test_edit_back_to_original_gives_no_correction(rows: Path) -> None:
    """Round 2 may restore what round 1 edited; the patch then has no correction."""
    with Journal(rows.parent / "review" / "decisions.jsonl", Step) as journal:
        session(rows, journal, 1).edit_truth(())
        second = session(rows, journal, 2)
        assert second.current.judged.expected.calls == ()
        suggestion = FINDINGS[0].opinion.change
        assert suggestion is not None
        assert suggestion.expected is not None
        original = suggestion.expected[0].model_copy(update={"arguments": {"account": ["C-881"]}})
        second.edit_truth((original,))
    assert export(rows) == 0
    assert (rows.parent / "review" / "patch.jsonl").read_text() == ""


@pytest.mark.parametrize(
    ("kept", "problem"),
    [
        (ROWS[1:], "1 reviewed rows are not in this file, such as savings"),
        (
            (SAVINGS._replace(expected=CHRISTMAS.expected), *ROWS[1:]),
            "savings has changed since it was reviewed",
        ),
    ],
)
def test_missing_or_changed_rows_are_refused(
    rows: Path, kept: tuple[Judged, ...], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing or changed row is an error, and no patch is written."""
    decide(rows)
    write_rows(kept, rows)
    assert export(rows) == 1
    assert problem in capsys.readouterr().err
    assert not (rows.parent / "review" / "patch.jsonl").exists()


def test_deciding_needs_a_terminal(
    rows: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a terminal, the command stops with an error."""
    options = ["--out", str(rows.parent / "review"), "--reviewer", "bea"]
    with Path(os.devnull).open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert main(["review", "decide", str(rows), *options]) == 1
    assert "needs a terminal" in capsys.readouterr().err


def test_export_without_findings_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message says which command to run first."""
    assert export(written(tmp_path)) == 1
    assert "run `review verify` first" in capsys.readouterr().err


def test_decide_command_works_in_a_real_terminal(rows: Path) -> None:
    """The command reads keys in a terminal of 80 by 24, saves, and quits with `q`."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "switchcraft_training.cli", "review", "decide", str(rows)]
    options = ["--out", str(rows.parent / "review"), "--reviewer", "bea"]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
    with subprocess.Popen(
        [*command, *options], stdin=slave, stdout=slave, stderr=slave, env=environment
    ) as process:
        os.close(slave)
        read_until(master, b"savings")
        os.write(master, b"a")
        read_until(master, b"1/4")
        os.write(master, b"q")
        read_until(master, None)
        assert process.wait(20) == 0
    os.close(master)
    (step,) = read_entries(rows.parent / "review" / "decisions.jsonl", Step)
    assert (step.id, step.reviewer, step.kind) == ("savings", "bea", CorrectionKind.TRUTH)


def read_until(terminal: int, wanted: bytes | None) -> None:
    """Read the terminal's output until it contains some bytes, or until the terminal is closed."""
    drawn, deadline = b"", time.monotonic() + 60
    while wanted is None or wanted not in drawn:
        assert time.monotonic() < deadline, drawn[-2000:]
        if select.select([terminal], [], [], 1)[0]:
            try:
                drawn += os.read(terminal, 65536)
            except OSError:  # Linux raises it when the other end is closed
                assert wanted is None, drawn[-2000:]
                return
