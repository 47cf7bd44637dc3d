"""Comparison of the checkers on a recording in the leaderboard's layout."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from router_service.core.calls.toolbox import Call
from switchcraft_training.cli import main
from switchcraft_training.comparison import PeerChecker, peer_questions

FUNCTION = {
    "name": "math.power",
    "description": "",
    "parameters": {
        "type": "dict",
        "properties": {
            "base": {"type": "float"},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["base"],
    },
}
ANSWERS = {
    "simple_0": "[math.power(base=2, tags=['b', 'a'])]",  # only the order differs: FN
    "simple_1": "[math.power(base=3)]",  # both reject
    "simple_2": "[math.power(base=2.0, tags=['a', 'b'])]",  # both accept
    "simple_3": "math.power(base=",  # cannot be read
}


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """Write a snapshot of the leaderboard: one model, four questions and their verdicts."""
    root = tmp_path / "bfcl-test"
    truth = [{"math.power": {"base": [2.0], "tags": [["a", "b"], ""]}}]
    message = {"role": "user", "content": "Two, please."}
    questions = [{"id": i, "question": [[message]], "function": [FUNCTION]} for i in ANSWERS]
    write(root / "data/BFCL_v3_simple.json.gz", questions)
    truths = [{"id": i, "ground_truth": truth} for i in ANSWERS]
    write(root / "data/possible_answer/BFCL_v3_simple.json.gz", truths)
    results = [{"id": i, "result": text} for i, text in ANSWERS.items()]
    write(root / "result/m/BFCL_v3_simple_result.json.gz", results)
    verdicts = [
        {"id": i, "valid": i == "simple_2", "error_type": "value_error:list"} for i in ANSWERS
    ]
    write(root / "verdict/m/simple.json.gz", verdicts)
    return root


def write(path: Path, rows: list[Any]) -> None:
    """Write compressed JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))


def test_compare_writes_table_disagreements_and_sample(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table has accuracies and differences; the sample has the one disagreement."""
    out = tmp_path / "out"
    assert main(["compare", str(recording), "--peer", "--out", str(out)]) == 0
    table = capsys.readouterr().out
    assert "| bfcl-test | 4 | 75.0% | 25.0% | 50.0% | 1 | 0 | 4 | 25.0% | 50.0% |" in table
    assert "| `malformed_call` | 1 |" in table
    assert (out / "table.md").read_text() == table.removesuffix("\n")
    (found,) = map(json.loads, (out / "disagreements.jsonl").read_text().splitlines())
    assert (found["kind"], found["id"], found["theirs"]) == ("FN", "simple_0", "value_error:list")
    assert (out / "sample.jsonl").read_text() == (out / "disagreements.jsonl").read_text()


def test_installed_leaderboard_checker_is_run(recording: Path) -> None:
    """The installed checker judges calls as usual, with and without dots in names."""
    questions, peer = peer_questions(recording), PeerChecker()
    right = {"base": 2.0, "tags": ["a", "b"]}
    assert peer.accepts(questions["simple_0"], [Call("math.power", right)])
    assert peer.accepts(questions["simple_0"], [Call("math_power", right)])
    assert not peer.accepts(
        questions["simple_0"], [Call("math.power", {**right, "tags": ["b", "a"]})]
    )
    assert not peer.accepts(questions["simple_0"], [])
