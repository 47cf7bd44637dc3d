"""`review verify` against a real endpoint: what is asked, kept, counted and asked again."""

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
from tests.training.review.cases import FLAGGED, ROWS, Verifier, verifying, written


@pytest.fixture
def verifier(monkeypatch: pytest.MonkeyPatch) -> Iterator[Verifier]:
    """Serve a verifier and set the key that it is asked with."""
    monkeypatch.setenv("REVIEW_KEY", "secret")
    with verifying() as running:
        yield running


def verify(verifier: Verifier, folder: Path, *options: str) -> int:
    """Run the command; return its exit status."""
    where = [str(folder / "rows.jsonl"), "--out", str(folder / "review")]
    endpoint = ["--model", "judge", "--base-url", verifier.url, "--api-key-env", "REVIEW_KEY"]
    return main(["review", "verify", *where, *endpoint, "--price", "2", "10", *options])


def findings(folder: Path) -> dict[str, Finding]:
    """Read what was kept, by id."""
    kept = read_entries(folder / "review" / "findings.jsonl", Finding)
    assert len({finding.id for finding in kept}) == len(kept)
    return {finding.id: finding for finding in kept}


def test_every_row_is_asked_about_once(verifier: Verifier, tmp_path: Path) -> None:
    """A second run asks nothing; the flags are those of the verifier, and the cost is counted."""
    written(tmp_path)
    assert verify(verifier, tmp_path) == 0
    assert verify(verifier, tmp_path) == 0
    assert sorted(verifier.asked) == sorted(row.example.id for row in ROWS)
    kept = findings(tmp_path)
    assert sorted(i for i, f in kept.items() if f.opinion.is_flagged) == sorted(FLAGGED)
    assert kept["right"].input_tokens == 1000
    assert kept["right"].cost_usd == pytest.approx(0.003)


def test_a_failed_request_is_asked_again(
    verifier: Verifier, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The other rows are kept, the status says that some are missing, and the next run has them."""
    written(tmp_path)
    verifier.refused = {"savings"}
    with caplog.at_level(logging.WARNING):
        assert verify(verifier, tmp_path) == 1
    assert "savings was not verified" in caplog.text
    assert "1 rows were not verified; run the same command again" in caplog.text
    assert sorted(findings(tmp_path)) == sorted(r.example.id for r in ROWS if r != ROWS[0])
    verifier.refused, verifier.asked = set(), []
    assert verify(verifier, tmp_path) == 0
    assert verifier.asked == ["savings"]


def test_a_wrong_key_stops_at_once(
    verifier: Verifier, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What every request would meet ends the run with a message instead of going through all."""
    written(tmp_path)
    verifier.refused, verifier.status = {row.example.id for row in ROWS}, 401
    assert verify(verifier, tmp_path, "--concurrency", "1") == 1
    assert len(verifier.asked) == 1
    message = capsys.readouterr().err
    assert "model 'judge' refused the request" in message
    assert "secret" not in message


def test_an_address_that_is_no_api_is_told(
    verifier: Verifier, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A web page where an answer should be is an error that names the option."""
    written(tmp_path)
    verifier.url = verifier.url.replace("/v1", "/home")
    assert verify(verifier, tmp_path) == 1
    assert "answered without a chat completion; is --base-url correct?" in capsys.readouterr().err


def test_a_key_that_is_not_set_is_told(
    verifier: Verifier,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The message names the variable, and nothing is asked."""
    written(tmp_path)
    monkeypatch.delenv("REVIEW_KEY")
    assert verify(verifier, tmp_path) == 1
    assert "$REVIEW_KEY is empty" in capsys.readouterr().err
    assert verifier.asked == []


def test_a_row_that_changed_is_asked_about_anew(verifier: Verifier, tmp_path: Path) -> None:
    """An opinion holds for the row that it was about."""
    path = written(tmp_path)
    assert verify(verifier, tmp_path) == 0
    verifier.asked = []
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[2]["expected"][0]["arguments"]["account"] = ["C-882"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert verify(verifier, tmp_path) == 0
    assert verifier.asked == ["right"]


def test_an_id_that_comes_twice_is_refused(
    verifier: Verifier, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Decisions are kept by id, so an id has one row."""
    write_rows([ROWS[0], ROWS[0]], tmp_path / "rows.jsonl")
    assert verify(verifier, tmp_path) == 1
    assert "the id 'savings' is used twice" in capsys.readouterr().err
