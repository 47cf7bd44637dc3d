"""`switchcraft-train evaluate`: the shipped artifact on invented answers of its arms."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest
import yaml

from router_service.core.artifact import SHIPPED, Artifact
from switchcraft_training.cli import main
from switchcraft_training.config import load_config
from switchcraft_training.datasets.rows import write_rows
from switchcraft_training.provenance import source_sha256
from switchcraft_training.records import Example, Expected, ExpectedCall, Judged

ARMS = Artifact.load(SHIPPED).manifest.arms
QUERIES = 40


def forecast(number: int) -> Judged:
    """Return a query that requires one call."""
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tool = {"type": "function", "function": {"name": "forecast", "parameters": schema}}
    message = {"role": "user", "content": f"What is the weather in city number {number}?"}
    request = {"messages": [message], "tools": [tool]}
    expected = Expected((ExpectedCall("forecast", {"city": (f"C{number}",)}),))
    return Judged(Example(str(number), "weather", request, "made-up"), expected)


def answer(number: int, arm: str) -> str:
    """Return a line of a labelling run in which the second arm fails every other query."""
    city = "nowhere" if arm == ARMS[1] and number % 2 else f"C{number}"
    calls = [{"name": "forecast", "arguments": {"city": city}}]
    counts = {"input_tokens": 90, "output_tokens": 20, "attempt": 0}
    row = {"example_id": str(number), "arm": arm, "calls": calls, "problem": None, **counts}
    return json.dumps(row) + "\n"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Write the folder of a labelling run."""
    folder = tmp_path / "data"
    folder.mkdir()
    write_rows(map(forecast, range(QUERIES)), folder / "rows.jsonl")
    lines = [answer(number, arm) for arm in ARMS for number in range(QUERIES)]
    (folder / "answers.jsonl").write_text("".join(lines))
    return folder


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Write a run's configuration with the pool in another order than the artifact's."""
    price = {"input_usd_per_mtok": 1, "output_usd_per_mtok": 2}
    values = {
        "name": "made-up",
        "source": {"format": "labelled", "path": "rows.jsonl", "answers": "."},
        "pool": [{"arm": arm, "price": price} for arm in reversed(ARMS)],
    }
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def test_an_artifact_is_measured_on_recorded_answers(
    config: Path, data: Path, tmp_path: Path
) -> None:
    """Each arm gets the accuracy of its own answers, whatever the order of the pool in the file."""
    out = tmp_path / "out"
    asked = ["evaluate", str(SHIPPED), str(data), "--config", str(config), "--out", str(out)]
    assert main(asked) == 0
    report = json.loads((out / "report.json").read_text())
    entries = {entry["name"]: entry for entry in report["test"]["entries"]}
    assert entries[ARMS[1]]["accuracy"] == pytest.approx(
        {"value": 0.5, "stderr": (0.25 / (QUERIES - 1)) ** 0.5, "n": QUERIES}
    )
    assert entries[ARMS[0]]["accuracy"]["value"] == 1
    assert entries[ARMS[0]]["cost_usd"]["value"] == pytest.approx(130e-6)
    assert report["sections"]["tokens"][0]["input_tokens"]["value"] == 90
    assert (out / "report.html").read_text().startswith("<!doctype html>")


def test_what_an_artifact_learned_from_is_not_passed_off_as_unseen(
    config: Path, data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The command warns about the artifact's own training data, and not about other data."""
    source = load_config(config).source
    for known, warns in (("0" * 64, False), (source_sha256(source, data), True)):
        artifact = copied(tmp_path / known, known)
        out = tmp_path / "out"
        asked = ["evaluate", str(artifact), str(data), "--config", str(config), "--out", str(out)]
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert main(asked) == 0
        assert ("is what the artifact was trained on" in caplog.text) == warns


def copied(folder: Path, data_sha256: str) -> Path:
    """Copy the shipped artifact as if it had been trained on this data, from one source."""
    shutil.copytree(SHIPPED, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["provenance"] |= {"data_sha256": data_sha256, "config": "{}"}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def test_another_pool_is_refused(
    config: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If the pool lacks one of the artifact's arms, the command fails and names that arm."""
    values = yaml.safe_load(config.read_text())
    values["pool"] = [entry for entry in values["pool"] if entry["arm"] != ARMS[2]]
    config.write_text(yaml.safe_dump(values))
    asked = ["evaluate", str(SHIPPED), str(data), "--config", str(config)]
    assert main([*asked, "--out", str(tmp_path / "out")]) == 1
    assert f"is not the artifact's arms: {ARMS[2]}" in capsys.readouterr().err
