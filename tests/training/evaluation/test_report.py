"""The report: a self-contained file with all measurements."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from router_service.apis.conversation import Json
from router_service.artifact import SHIPPED, Artifact
from router_service.checker.toolbox import ExpectedCall
from switchcraft_training.cli import main
from switchcraft_training.data.learned import LearnedQueries
from switchcraft_training.evaluation.calibration import choose_calibration
from switchcraft_training.evaluation.evaluate import Experiment
from switchcraft_training.evaluation.report import Report, all_sections, main_figures, write_report
from switchcraft_training.records import Example, Expected, Judged
from tests.training.evaluation.cases import (
    NEW,
    PROVENANCE,
    complete_experiment,
    copy_shipped,
    simulated_experiment,
)
from tests.training.runs import STRING, answer_line, function_tool, write_run

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_draws")]


def report_on(experiment: Experiment) -> Report:
    """Return a report without training data."""
    figures = main_figures(experiment)
    return Report("made-up", figures, PROVENANCE, NEW, all_sections(experiment))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, few_draws: None) -> Path:  # noqa: ARG001
    """Write the full report."""
    folder = tmp_path_factory.mktemp("report")
    write_report(report_on(complete_experiment()), folder)
    return folder


@pytest.fixture(scope="module")
def values(written: Path) -> Json:
    """Read the numbers of the full report."""
    return json.loads((written / "report.json").read_text())


def test_page_is_self_contained_and_shows_the_figures(written: Path, values: Json) -> None:
    """The page loads no other files, escapes names, and shows the measured accuracy."""
    page = (written / "report.html").read_text()
    assert not re.search(r"<(?:script|link|img|iframe)\b|url\(http|@import", page)
    assert "small&lt;1&gt;" in page
    assert "<1>" not in page
    large = next(entry for entry in values["test"]["entries"] if entry["name"] == "large")
    assert f">{large['accuracy']['value'] * 100:.1f}<small>" in page


def test_report_contains_goals_and_the_chosen_calibration(tmp_path: Path) -> None:
    """The page and the JSON contain both tables, and the chosen method is marked."""
    made = simulated_experiment()
    labels, raw = made.table.correct, made.probabilities
    study = choose_calibration(labels, raw, range(len(raw)), seed=0)
    told = Experiment(made.table, raw, made.expected_costs_usd, made.policies, calibrating=study)
    figures = main_figures(told)
    write_report(Report("made-up", figures, PROVENANCE, NEW, all_sections(told)), tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "the rule for each goal" in page
    assert "as many correct answers as the best single model, or 1 point fewer" in page
    assert f"{study.calibration.method} <i>chosen</i>" in page
    sections = json.loads((tmp_path / "report.json").read_text())["sections"]
    assert len(sections["calibrating"]["trials"]) == 3
    assert sections["calibrating"]["calibration"]["method"] == study.calibration.method
    assert sections["promises"][0]["goal"] == "accuracy=best-1"


ARMS = Artifact.load(SHIPPED).manifest.arms


QUERIES = 40


def forecast(number: int) -> Judged:
    """Return a query that requires one call."""
    tool = function_tool("forecast", {"city": STRING})
    message = {"role": "user", "content": f"What is the weather in city number {number}?"}
    request = {"messages": [message], "tools": [tool]}
    expected = Expected((ExpectedCall("forecast", {"city": (f"C{number}",)}),))
    return Judged(Example(str(number), "weather", request, "made-up"), expected)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Write a labelling run in which the second arm fails every other query."""
    lines = [
        answer_line(str(number), arm, ("forecast", {"city": f"C{number}"}))
        if arm != ARMS[1] or number % 2 == 0
        else answer_line(str(number), arm, ("forecast", {"city": "nowhere"}))
        for arm in ARMS
        for number in range(QUERIES)
    ]
    return write_run(tmp_path / "data", map(forecast, range(QUERIES)), lines)


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


def test_evaluate_measures_an_artifact_on_recorded_answers(
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
    assert report["overlap"] == {"queries": QUERIES, "learned": 0, "share": 0.0}
    page = (out / "report.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "that the router has not seen" in page
    assert 'class="banner"' not in page


def test_evaluate_says_how_many_queries_the_artifact_has_learned_from(
    config: Path, data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Page, JSON and log name the learned queries, and nothing calls the queries unseen.

    Case, spacing and the name of the dataset make no difference.
    """
    learned = LearnedQueries.of(shouted(forecast(number).example) for number in range(10))
    artifact, out = tmp_path / "artifact", tmp_path / "out"
    copy_shipped(artifact, learned)
    asked = ["evaluate", str(artifact), str(data), "--config", str(config), "--out", str(out)]
    with caplog.at_level(logging.WARNING):
        assert main(asked) == 0
    overlap = json.loads((out / "report.json").read_text())["overlap"]
    assert overlap == {"queries": QUERIES, "learned": 10, "share": 0.25}
    page = (out / "report.html").read_text()
    assert "The router has learned from 10 of these 40 queries (25.0%)" in page
    assert "that the router has not seen" not in page
    assert "the artifact has learned from 10 of these 40 queries" in caplog.text


def shouted(example: Example) -> Example:
    """Return a query with other case and spacing, in another dataset."""
    message = {"role": "user", "content": f"  {example.query.upper()}\n"}
    request = {**example.request, "messages": [message]}
    return replace(example, request=request, dataset="elsewhere")
