"""Recorded answers and verdicts of three leaderboard versions, behind one interface."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from router_service.core.calls.toolbox import Call
from router_service.core.errors import DataError
from switchcraft_training.checking import check_answer
from switchcraft_training.datasets import bfcl

FOLDERS = {"bfcl-2024-08": 50, "bfcl-v3-8b": 10, "bfcl-v4-gptoss": 2}
"""Models whose runs are not broken, by folder."""


def write(path: Path, *rows: Any) -> None:  # noqa: ANN401
    """Write compressed JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Write two runs of one model; the second run's answer is wrong."""
    for run, calls in (("run-1", [{"area": '{"base": 10}'}]), ("run-2", [])):
        folder = tmp_path / run
        write(
            folder / "result/m/non_live/BFCL_v4_simple_python_result.json.gz",
            {"id": "simple_python_0", "result": calls, "input_token_count": 9},
        )
        header = {"accuracy": 0.5, "correct_count": 1, "total_count": 2}
        failed = {"id": "simple_python_0", "valid": False, "error_type": "wrong_count"}
        scores = [header, failed] if run == "run-2" else [header]
        write(folder / "score/m/non_live/BFCL_v4_simple_python_score.json.gz", *scores)
    log = [[[{"cd": '{"folder": "a"}'}], [{"ls": "{"}], []], [["words"]]]
    write(
        tmp_path / "run-1/result/m/multi_turn/BFCL_v4_multi_turn_base_result.json.gz",
        {"id": "multi_turn_base_0", "result": log},
        {"id": "multi_turn_base_1", "result": "Error during inference: gone"},
    )
    return tmp_path


def test_repeated_runs_are_attempts(runs: Path) -> None:
    """Each run's answers and verdicts have its number; only questions with answers are judged."""
    recording = bfcl.open_recording(runs)
    assert recording.arms() == ["m"]
    first, second = recording.answers("m")
    assert (first.attempt, second.attempt) == (0, 1)
    assert (first.calls, second.calls) == ((Call("area", {"base": 10}),), ())
    assert list(recording.verdicts("m")) == [
        ("simple_python_0", True, None, 0),
        ("simple_python_0", False, "wrong_count", 1),
    ]
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
    write(tmp_path / f"run-1/result/{arm}/non_live/BFCL_v4_parallel_result.json.gz", row)
    (answer,) = bfcl.open_recording(tmp_path).answers(arm)
    assert (answer.input_tokens, answer.output_tokens) == counts
    assert [record.levelname for record in caplog.records] == ["WARNING"] * warnings


def test_every_step_of_a_multi_turn_log_is_read(runs: Path) -> None:
    """A step's id has its turn and step, and a step that cannot be parsed has a problem code."""
    steps = {step.example_id: step for step in bfcl.RepeatedRuns(runs).steps("m")}
    assert {name: step.problem for name, step in steps.items()} == {
        "multi_turn_base_0:0:0": None,
        "multi_turn_base_0:0:1": "arguments_not_json",
        "multi_turn_base_0:0:2": None,
        "multi_turn_base_0:1:0": "text",
        "multi_turn_base_1": "no_answer",
    }
    assert steps["multi_turn_base_0:0:0"].calls == (Call("cd", {"folder": "a"}),)


@pytest.mark.parametrize("arm", ["m", "m-FC"])
def test_locally_served_models_answer_in_text(tmp_path: Path, arm: str) -> None:
    """From v3 on, the answers of a native run may be recorded as unparsed text."""
    text = '<tool_call>\n{"name": "Hotel.book", "arguments": {"nights": 2}}\n</tool_call>'
    row = {"id": "simple_0", "result": text, "output_token_count": 5}
    write(tmp_path / "result" / arm / "BFCL_v3_simple_result.json.gz", row)
    write(tmp_path / "verdict" / arm / "simple.json.gz", {"id": "simple_0", "valid": True})
    recording = bfcl.open_recording(tmp_path)
    (answer,) = recording.answers(arm)
    assert answer.calls == (Call("Hotel.book", {"nights": 2}),)
    assert list(recording.verdicts(arm)) == [("simple_0", True, None, 0)]


@pytest.mark.parametrize(
    ("latency", "seconds"),
    [(1.5, 1.5), (2, 2.0), ([0.5, 1, 0.25], 1.75), ("N/A", None), (0, None), ([], None)],
)
def test_latency_is_read(tmp_path: Path, latency: object, seconds: float | None) -> None:
    """The latency is the sum of all steps; a latency that was not measured is unknown, not 0."""
    row = {"id": "simple_0", "result": "[f()]", "latency": latency}
    write(tmp_path / "result" / "m" / "BFCL_v3_simple_result.json.gz", row)
    (answer,) = bfcl.open_recording(tmp_path).answers("m")
    assert answer.seconds == seconds


def test_model_without_recording_is_an_error(runs: Path, tmp_path: Path) -> None:
    """An unknown model or a directory without answers is an error, not an empty list."""
    for recording in (bfcl.open_recording(runs), bfcl.open_recording(tmp_path / "empty")):
        with pytest.raises(DataError, match="contains no recorded answers"):
            list(recording.answers("nobody"))
    with pytest.raises(DataError, match="must contain the recorded answers"):
        bfcl.open_recording(tmp_path / "empty").arms()


@pytest.mark.recorded
@pytest.mark.parametrize("folder", FOLDERS)
def test_every_recorded_answer_has_question_and_verdict(recorded_data: Path, folder: str) -> None:
    """Every model answered every judged question, and every answer has a verdict."""
    recording = bfcl.open_recording(recorded_data / folder)
    ids = {judged.example.id for judged in recording.judged()}
    assert len(recording.arms()) == FOLDERS[folder]
    for arm in recording.arms():
        answered = Counter((a.example_id, a.attempt) for a in recording.answers(arm))
        assert {name for name, _ in answered} == ids
        assert answered == Counter((v.example_id, v.attempt) for v in recording.verdicts(arm))
        assert set(answered.values()) == {1}


@pytest.mark.recorded
def test_nearly_all_recorded_calls_of_v4_are_parsed(recorded_data: Path) -> None:
    """99.9% of single-turn answers and 99.5% of multi-turn steps are parsed as calls or as text.

    Measured: 12,371 of 12,380, and 27,906 of 28,049.
    """
    runs = bfcl.RepeatedRuns(recorded_data / "bfcl-v4-gptoss")
    answers = [answer.problem for arm in runs.arms() for answer in runs.answers(arm)]
    steps = [step.problem for arm in runs.arms() for step in runs.steps(arm)]
    assert answers.count(None) / len(answers) >= 0.999
    assert steps.count(None) / len(steps) >= 0.99


@pytest.mark.recorded
@pytest.mark.parametrize("folder", ["bfcl-v3-8b", "bfcl-v4-gptoss"])
def test_verdicts_agree_on_later_versions(recorded_data: Path, folder: str) -> None:
    """On later versions, at least 97% of our verdicts agree with the leaderboard's.

    Measured over all models: 98.3% on v3, 98.9% on v4.
    """
    recording = bfcl.open_recording(recorded_data / folder)
    judged = {j.example.id: j for j in recording.judged() if not j.expected.any_call}
    arm = recording.arms()[0]
    verdicts = {(v.example_id, v.attempt): v.valid for v in recording.verdicts(arm)}
    same = [
        check_answer(*judged[answer.example_id], answer).correct
        == verdicts[answer.example_id, answer.attempt]
        for answer in recording.answers(arm)
        if answer.example_id in judged
    ]
    assert sum(same) / len(same) >= 0.97
