"""`switchcraft-train review`: from a critic's opinions to corrected rows."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from switchcraft_training.cli import main
from switchcraft_training.datasets.corrections import apply_corrections, last_utterance
from switchcraft_training.datasets.rows import read_rows, write_rows
from tests.training.review.cases import (
    CHRISTMAS,
    FLAGGED,
    ROWS,
    UTTERANCE,
    FakeCritic,
    verifying,
    written,
)


@pytest.fixture
def critic(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCritic]:
    """Serve a critic, and set its API key."""
    monkeypatch.setenv("REVIEW_KEY", "secret")
    with verifying() as running:
        yield running


def review(critic: FakeCritic, folder: Path) -> int:
    """Run the command; return its exit status."""
    where = [str(folder / "rows.jsonl"), "--out", str(folder / "review.jsonl")]
    endpoint = ["--model", "judge", "--base-url", critic.url, "--api-key-env", "REVIEW_KEY"]
    return main(["review", *where, *endpoint, "--price", "2", "10", "--concurrency", "1"])


def test_accepted_suggestions_correct_the_rows(critic: FakeCritic, tmp_path: Path) -> None:
    """The critic flags rows and suggests changes; only accepted and edited ones are applied."""
    rows, path = written(tmp_path), tmp_path / "review.jsonl"
    assert review(critic, tmp_path) == 0
    lines = {line["id"]: line for line in map(json.loads, path.read_text().splitlines())}
    flagged = {name for name, line in lines.items() if line["is_flagged"]}
    assert flagged == {*FLAGGED, "spelling"}
    assert {name for name in flagged if "problem" in lines[name]} == {"unknown", "garbled"}
    for name in ("savings", "christmas", "unknown"):
        lines[name]["accept"] = True
    lines["unknown"]["expected"] = []
    path.write_text("".join(json.dumps(line) + "\n" for line in lines.values()))
    corrected = {row.example.id: row for row in apply_corrections(read_rows(rows), path)}
    assert corrected["savings"].expected.calls[0].arguments == {"account": ("S-204",)}
    assert last_utterance(corrected["christmas"].example) == UTTERANCE
    assert corrected["christmas"].expected == CHRISTMAS.expected
    assert corrected["unknown"].expected.calls == ()
    same = {"right", "spelling", "garbled"}
    assert {j.example.id for j in ROWS if corrected[j.example.id] == j} == same


def test_every_row_is_reviewed_once(
    critic: FakeCritic, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Only rows that failed, are new or have changed are asked about."""
    path = written(tmp_path)
    critic.refused = {"savings"}
    with caplog.at_level(logging.WARNING):
        assert review(critic, tmp_path) == 1
    assert "savings was not reviewed" in caplog.text
    critic.refused, critic.requested = set(), []
    with (tmp_path / "review.jsonl").open("a") as file:
        file.write('{"id": "sav')  # of a run that was killed
    assert review(critic, tmp_path) == 0
    assert critic.requested == ["savings"]
    assert review(critic, tmp_path) == 0
    assert critic.requested == ["savings"]
    path.write_text(path.read_text().replace('"C-881"', '"C-882"'))
    assert review(critic, tmp_path) == 0
    assert critic.requested == ["savings", "savings", "right", "spelling"]


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ("key", "model 'judge' refused the request"),
        ("page", "answered without a chat completion; is --base-url correct?"),
        ("no key", "$REVIEW_KEY is empty"),
        ("twice", "has an id twice"),
    ],
)
def test_what_every_request_would_get_stops_immediately(
    fault: str,
    problem: str,
    critic: FakeCritic,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The message says what to change, without the key."""
    rows = written(tmp_path)
    if fault == "key":
        critic.refused, critic.status = {row.example.id for row in ROWS}, 401
    elif fault == "page":
        critic.url = critic.url.replace("/v1", "/home")
    elif fault == "no key":
        monkeypatch.delenv("REVIEW_KEY")
    else:
        write_rows([ROWS[0], ROWS[0]], rows)
    assert review(critic, tmp_path) == 1
    assert len(critic.requested) <= 1
    message = capsys.readouterr().err
    assert problem in message
    assert "secret" not in message
