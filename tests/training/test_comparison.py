"""Comparison of the checkers on a recording in the leaderboard's layout."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from router_service.checker.toolbox import ExpectedCall
from switchcraft_training.cli import main
from switchcraft_training.records import Example, Expected, Judged
from tests.training.runs import answer_line, write_run

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


def labelled_run(folder: Path) -> tuple[Path, Path]:
    """Write a labelling run of one model, with rows of all five datasets.

    In each dataset, one answer is as expected, and one has the items of an array in another order.
    The leaderboard's rows have ids that it does not know, except for one. One row
    requires no call.
    """
    parameters = {
        "type": "object",
        "properties": {"tags": {"type": "array", "items": {"type": "string"}}},
        "required": ["tags"],
    }
    tool = {"type": "function", "function": {"name": "tag", "parameters": parameters}}
    rows, answers = [], []
    for dataset in ("confetti", "glaive", "hermes", "xlam", "bfcl-v4"):
        for number, tags in enumerate((["a", "b"], ["b", "a"])):
            name = f"{dataset}_{number}"
            message = {"role": "user", "content": f"Tag {name}"}
            request = {"messages": [message], "tools": [tool]}
            expected = Expected((ExpectedCall("tag", {"tags": (["a", "b"],)}),))
            rows.append(Judged(Example(name, "c", request, dataset), expected))
            answers.append(answer_line(name, "m", ("tag", {"tags": tags})))
    # A question of the installed leaderboard, under its own id.
    name = "calculate_triangle_area"
    area = {"name": name, "parameters": {"type": "object", "properties": {}}}
    message = {"role": "user", "content": "Area of a triangle with base 10 and height 5?"}
    request = {"messages": [message], "tools": [{"type": "function", "function": area}]}
    known = Example("simple_python_0", "simple_python", request, "bfcl-v4")
    right = {"base": 10, "height": 5, "unit": "units"}
    call = ExpectedCall(name, {parameter: (value,) for parameter, value in right.items()})
    rows += [Judged(known, Expected((call,))), replace_id(rows[0], "nothing_0", Expected(()))]
    answers += [answer_line(known.id, "m", (call.name, right))]
    answers.append(answer_line("nothing_0", "m", ("tag", {"tags": []})))
    return write_run(folder, rows, answers) / "rows.jsonl", folder


def replace_id(judged: Judged, name: str, expected: Expected) -> Judged:
    """Return a row with another id and other expected calls."""
    return Judged(replace(judged.example, id=name), expected)


def test_labelling_run_of_five_datasets_is_judged_by_the_installed_checker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table has a row per dataset and their sum; arrays in another order are its FN.

    Of the leaderboard's rows, only those are judged that `bfcl-eval` has as single-turn questions.
    """
    rows, answers = labelled_run(tmp_path)
    out = str(tmp_path / "out")
    assert main(["compare", "--labelled", str(rows), str(answers), "--out", out]) == 0
    table = capsys.readouterr().out
    for dataset in ("confetti", "glaive", "hermes", "xlam"):
        assert f"| {dataset} | 2 | 100.0% | 50.0% | 100.0% | 1 | 0 |" in table
    assert "| bfcl-v4 | 1 | 100.0% | 100.0% | 100.0% | 0 | 0 |" in table
    assert "| all datasets | 9 | 100.0% | 55.6% | 100.0% | 4 | 0 |" in table
    lines = (tmp_path / "out" / "disagreements.jsonl").read_text().splitlines()
    assert {json.loads(line)["id"] for line in lines} == {
        f"{dataset}_1" for dataset in ("confetti", "glaive", "hermes", "xlam")
    }


def write(path: Path, rows: list[Any]) -> None:
    """Write compressed JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))


def test_compare_writes_table_and_disagreements(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table has accuracies and differences, and the one disagreement is written."""
    out = tmp_path / "out"
    assert main(["compare", str(recording), "--peer", "--out", str(out)]) == 0
    table = capsys.readouterr().out
    assert "| bfcl-test | 4 | 75.0% | 25.0% | 50.0% | 1 | 0 | 4 | 25.0% | 50.0% |" in table
    assert "| `malformed_call` | 1 |" in table
    assert (out / "table.md").read_text() == table.removesuffix("\n")
    (found,) = map(json.loads, (out / "disagreements.jsonl").read_text().splitlines())
    assert (found["kind"], found["id"], found["theirs"]) == ("FN", "simple_0", "value_error:list")
