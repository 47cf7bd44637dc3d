"""`review verify` against a real endpoint: requests, saved findings, costs and retries."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from switchcraft_training.cli import main
from switchcraft_training.datasets.rows import write_rows
from switchcraft_training.review.journal import read_entries
from switchcraft_training.review.verify import Finding
from tests.training.review.cases import FLAGGED, ROWS, FakeCritic, verifying, written


@pytest.fixture
def critic(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCritic]:
    """Serve a critic and set its API key."""
    monkeypatch.setenv("REVIEW_KEY", "secret")
    with verifying() as running:
        yield running


def verify(critic: FakeCritic, folder: Path, *options: str) -> int:
    """Run the command; return its exit status."""
    where = [str(folder / "rows.jsonl"), "--out", str(folder / "review")]
    endpoint = ["--model", "judge", "--base-url", critic.url, "--api-key-env", "REVIEW_KEY"]
    return main(["review", "verify", *where, *endpoint, "--price", "2", "10", *options])


def findings(folder: Path) -> dict[str, Finding]:
    """Read the saved findings, by id."""
    kept = read_entries(folder / "review" / "findings.jsonl", Finding)
    assert len({finding.id for finding in kept}) == len(kept)
    return {finding.id: finding for finding in kept}


def test_every_row_is_verified_once(critic: FakeCritic, tmp_path: Path) -> None:
    """A second run sends no requests; the flags are the critic's, and the cost is counted."""
    written(tmp_path)
    assert verify(critic, tmp_path) == 0
    assert verify(critic, tmp_path) == 0
    assert sorted(critic.requested) == sorted(row.example.id for row in ROWS)
    kept = findings(tmp_path)
    assert sorted(i for i, f in kept.items() if f.opinion.is_flagged) == sorted(FLAGGED)
    assert kept["right"].input_tokens == 1000
    assert kept["right"].cost_usd == pytest.approx(0.003)


def test_failed_request_is_repeated_by_the_next_run(
    critic: FakeCritic, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The other rows are saved, the status is 1, and the next run verifies the missing row."""
    written(tmp_path)
    critic.refused = {"savings"}
    with caplog.at_level(logging.WARNING):
        assert verify(critic, tmp_path) == 1
    assert "savings was not verified" in caplog.text
    assert "1 rows were not verified; run the same command again" in caplog.text
    assert sorted(findings(tmp_path)) == sorted(r.example.id for r in ROWS if r != ROWS[0])
    critic.refused, critic.requested = set(), []
    assert verify(critic, tmp_path) == 0
    assert critic.requested == ["savings"]


def test_wrong_key_stops_immediately(
    critic: FakeCritic, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error that every request would get ends the run with a message."""
    written(tmp_path)
    critic.refused, critic.status = {row.example.id for row in ROWS}, 401
    assert verify(critic, tmp_path, "--concurrency", "1") == 1
    assert len(critic.requested) == 1
    message = capsys.readouterr().err
    assert "model 'judge' refused the request" in message
    assert "secret" not in message


def test_web_page_instead_of_api_is_an_error(
    critic: FakeCritic, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the option with the address."""
    written(tmp_path)
    critic.url = critic.url.replace("/v1", "/home")
    assert verify(critic, tmp_path) == 1
    assert "answered without a chat completion; is --base-url correct?" in capsys.readouterr().err


def test_missing_key_is_an_error(
    critic: FakeCritic,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The message names the variable, and no request is sent."""
    written(tmp_path)
    monkeypatch.delenv("REVIEW_KEY")
    assert verify(critic, tmp_path) == 1
    assert "$REVIEW_KEY is empty" in capsys.readouterr().err
    assert critic.requested == []


def test_changed_row_is_verified_again(critic: FakeCritic, tmp_path: Path) -> None:
    """An opinion is valid only for the row as it was."""
    path = written(tmp_path)
    assert verify(critic, tmp_path) == 0
    critic.requested = []
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[2]["expected"][0]["arguments"]["account"] = ["C-882"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert verify(critic, tmp_path) == 0
    assert critic.requested == ["right"]


def test_duplicate_id_is_refused(
    critic: FakeCritic, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Decisions are saved by id, so an id must be unique."""
    write_rows([ROWS[0], ROWS[0]], tmp_path / "rows.jsonl")
    assert verify(critic, tmp_path) == 1
    assert "the id 'savings' is used twice" in capsys.readouterr().err
