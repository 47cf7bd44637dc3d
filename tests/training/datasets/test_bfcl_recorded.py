"""Recorded answers of three leaderboard versions, behind one interface."""

from __future__ import annotations

from pathlib import Path

import pytest

from router_service.checker.toolbox import Call
from switchcraft_training.checking import check_answer
from switchcraft_training.datasets import bfcl
from switchcraft_training.datasets.rows import read_lines
from tests.training.runs import write_lines

pytestmark = pytest.mark.slow


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Write two runs of one model; the second run's answer is wrong."""
    for run, calls in (("run-1", [{"area": '{"base": 10}'}]), ("run-2", [])):
        folder = tmp_path / run
        write_lines(
            folder / "result/m/non_live/BFCL_v4_simple_python_result.json.gz",
            {"id": "simple_python_0", "result": calls, "input_token_count": 9},
        )
    write_lines(
        tmp_path / "run-1/result/m/multi_turn/BFCL_v4_multi_turn_base_result.json.gz",
        {"id": "multi_turn_base_0", "result": [[["words"]]]},
    )
    return tmp_path


def test_repeated_runs_are_attempts(runs: Path) -> None:
    """Each run's answers have its number; only questions with answers are judged."""
    recording = bfcl.open_recording(runs)
    assert recording.arms() == ["m"]
    first, second = recording.answers("m")
    assert (first.attempt, second.attempt) == (0, 1)
    assert (first.calls, second.calls) == ((Call("area", {"base": 10}),), ())
    assert [judged.example.id for judged in recording.judged()] == ["simple_python_0"]


@pytest.mark.parametrize(
    ("arm", "counts", "warnings"),
    [
        ("gpt-5.2-2025-12-11-FC", (240, 30), 0),
        ("claude-haiku-4-5-20251001-FC", (120, 30), 0),
        ("openai_gpt-oss-20b", (120, 30), 0),
        ("gemini-2.5-flash-lite-FC", (120, 30), 0),
        ("gemini-3-pro-preview-FC", (None, None), 1),
    ],
)
def test_token_counts_are_those_that_providers_charge(
    tmp_path: Path,
    arm: str,
    counts: tuple[int | None, int | None],
    warnings: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """OpenAI's prompt counts are those of one call; Google's output counts lack the reasoning."""
    calls = [{"area": '{"base": 10}'}, {"area": {"base": 20}}]
    row = {"id": "parallel_0", "result": calls, "input_token_count": 120, "output_token_count": 30}
    write_lines(tmp_path / f"run-1/result/{arm}/non_live/BFCL_v4_parallel_result.json.gz", row)
    (answer,) = bfcl.open_recording(tmp_path).answers(arm)
    assert (answer.input_tokens, answer.output_tokens) == counts
    assert [record.levelname for record in caplog.records] == ["WARNING"] * warnings


@pytest.mark.parametrize(
    ("latency", "seconds"),
    [(1.5, 1.5), (2, 2.0), ([0.5, 1, 0.25], 1.75), ("N/A", None), (0, None), ([], None)],
)
def test_latency_is_read(tmp_path: Path, latency: object, seconds: float | None) -> None:
    """The latency is the sum of all steps; a latency that was not measured is unknown, not 0."""
    row = {"id": "simple_0", "result": "[f()]", "latency": latency}
    write_lines(tmp_path / "result" / "m" / "BFCL_v3_simple_result.json.gz", row)
    (answer,) = bfcl.open_recording(tmp_path).answers("m")
    assert answer.seconds == seconds


@pytest.mark.recorded
def test_nearly_all_recorded_calls_of_v4_are_parsed(recorded_data: Path) -> None:
    """99.9% of the answers are parsed as calls or as text; measured: 12,371 of 12,380."""
    runs = bfcl.open_recording(recorded_data / "bfcl-v4-gptoss")
    answers = [answer.problem for arm in runs.arms() for answer in runs.answers(arm)]
    assert answers.count(None) / len(answers) >= 0.999


@pytest.mark.recorded
def test_verdicts_agree_with_the_leaderboard_s(recorded_data: Path) -> None:
    """At least 97% of our verdicts are those of the leaderboard's checker; on v3, 98.3% are."""
    root = recorded_data / "bfcl-v3-8b"
    recording = bfcl.open_recording(root)
    judged = {j.example.id: j for j in recording.judged() if not j.expected.any_call}
    arm = recording.arms()[0]
    verdicts = {
        row["id"]: row["valid"]
        for path in (root / "verdict" / arm).glob("*.json.gz")
        for row in read_lines(path, dict)
    }
    same = [
        check_answer(*judged[answer.example_id], answer).correct == verdicts[answer.example_id]
        for answer in recording.answers(arm)
        if answer.example_id in judged
    ]
    assert sum(same) / len(same) >= 0.97
