"""The report: a self-contained file with all measurements."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from playwright.sync_api import Browser

from router_service.apis.conversation import Json
from router_service.artifact import SHIPPED, Artifact
from router_service.checker.toolbox import ExpectedCall
from switchcraft_training.cli import main
from switchcraft_training.data.learned import LearnedQueries, TrainingOverlap, digests_of
from switchcraft_training.datasets.rows import write_rows
from switchcraft_training.evaluation.calibration import choose_calibration
from switchcraft_training.evaluation.evaluate import Experiment
from switchcraft_training.evaluation.metrics import f1_measures
from switchcraft_training.evaluation.report import Report, all_sections, main_figures, write_report
from switchcraft_training.models.checkpoints import Epoch
from switchcraft_training.records import Example, Expected, Judged
from tests.training.evaluation.cases import (
    COSTS_USD,
    NEW,
    PROVENANCE,
    complete_experiment,
    copy_shipped,
    minimal_experiment,
    simulated_experiment,
)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_draws")]

OPTIONAL = ("tokens", "repeated", "parts", "stability")


def report_on(experiment: Experiment) -> Report:
    """Return a report without training data."""
    figures = main_figures(experiment)
    return Report("made-up", figures, PROVENANCE, NEW, all_sections(experiment, figures))


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


def test_plots_use_the_pages_text_colour(written: Path) -> None:
    """Text and axes use currentColor, so they are legible on dark and on light backgrounds."""
    page = (written / "report.html").read_text()
    assert "#010203" not in page
    assert page.count("currentColor") > 100


def test_json_has_an_error_for_every_figure(values: Json) -> None:
    """`report.json` contains n and an error for each value."""
    entry = values["test"]["entries"][0]
    assert set(entry["accuracy"]) == {"value", "stderr", "n"}
    assert len(entry["difference_interval"]) == 2
    assert set(values["sections"]["field"][0]["aiq"]) == {"value", "stderr", "interval", "n"}
    assert values["test"]["auc"]["n"] == 60
    assert values["provenance"]["commit"] == "c0ffee"


def test_page_has_every_section_with_input(written: Path) -> None:
    """With all inputs, the page contains every section."""
    page = (written / "report.html").read_text()
    assert all(f'id="{name}"' in page for name in OPTIONAL)


def test_page_begins_with_a_summary_and_unfolds(written: Path, browser: Browser) -> None:
    """The figures that matter take four screens; a link to a section of the rest unfolds it."""
    with browser.new_context(viewport={"width": 1440, "height": 900}) as context:
        tab = context.new_page()
        tab.goto((written / "report.html").as_uri())
        assert tab.evaluate("document.documentElement.scrollHeight") < 4 * 900
        assert tab.locator("figure").filter(visible=True).count() == 3
        table = tab.get_by_role("heading", name="Every rule of the sweep")
        assert not table.is_visible()
        tab.get_by_role("heading", name="Rules", exact=True).click()
        assert table.is_visible()
        tab.goto((written / "report.html").as_uri() + "#tokens")
        tab.get_by_role("columnheader", name="chattiness").wait_for()


def test_page_fits_a_phone(written: Path, browser: Browser) -> None:
    """At a width of 400 px, only tables and plots scroll sideways, inside their own boxes."""
    with browser.new_context(viewport={"width": 400, "height": 900}) as context:
        tab = context.new_page()
        tab.goto((written / "report.html").as_uri())
        tab.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
        assert tab.evaluate("document.documentElement.scrollWidth") == 400


def test_sections_without_input_are_omitted(tmp_path: Path) -> None:
    """Without tokens, variants and runs, the page does not have their sections."""
    write_report(report_on(minimal_experiment()), tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert not [name for name in OPTIONAL if f'id="{name}"' in page]


def test_training_data_of_a_run_is_reported(tmp_path: Path) -> None:
    """The course of training, label rates and folds appear if the run provides them."""
    figures = main_figures(minimal_experiment())
    report = Report(
        name="made-up",
        test=figures,
        provenance=PROVENANCE,
        overlap=NEW,
        folds=5,
        teaching=400,
        unprofiled_arms=("large",),
        label_rates={"simple": {"small<1>": 0.6, "large": 0.9}},
        epochs=(Epoch(1, 0.6, 0.5, 0.7, 0.8), Epoch(2, 0.5, 0.45, 0.75, 0.85)),
        parity={"int8 graph: mean difference": 0.0123},
    )
    write_report(report, tmp_path)
    page = (tmp_path / "report.html").read_text()
    for told in (
        "divided into 5 folds",
        "up to 400 queries",
        "MIRT was left out",
        "Training of the shipped router",
        "0.0123",
        "macro-F1",
    ):
        assert told in page
    written = json.loads((tmp_path / "report.json").read_text())
    assert tuple(map(Epoch.read, written["epochs"])) == report.epochs


def test_f1_of_the_predictions_is_reported(tmp_path: Path) -> None:
    """The page and the JSON have micro-F1, macro-F1 and each model's F1."""
    made = minimal_experiment()
    write_report(report_on(made), tmp_path)
    figures = json.loads((tmp_path / "report.json").read_text())["sections"]["calibration"]
    expected = f1_measures(made.table.correct, made.probabilities)
    assert [arm["f1"]["value"] for arm in figures["arms"]] == pytest.approx(
        [each.value for each in (expected.micro, *expected.arms)]
    )
    assert figures["macro_f1"]["value"] == pytest.approx(expected.macro.value)
    assert "macro-F1, is" in (tmp_path / "report.html").read_text()


def test_empty_confusion_matrix_is_not_drawn(tmp_path: Path) -> None:
    """If no wrong choice was avoidable, only the matrix of all queries is drawn."""
    base = minimal_experiment()
    right = Experiment(base.table, base.table.correct, COSTS_USD, {"default": "theta=0.5"})
    write_report(report_on(right), tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "(all queries, n=60)" in page
    assert "(wrong choices" not in page


def test_same_report_gives_identical_files(tmp_path: Path) -> None:
    """Writing twice gives identical files, so a changed file means a changed result."""
    report = report_on(minimal_experiment())
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_report(report, tmp_path / name)
    for name in ("report.html", "report.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_report_contains_goals_and_the_chosen_calibration(tmp_path: Path) -> None:
    """The page and the JSON contain both tables, and the chosen method is marked."""
    made = simulated_experiment()
    labels, raw = made.table.correct, made.probabilities
    study = choose_calibration(labels, raw, range(len(raw)), seed=0)
    told = Experiment(made.table, raw, made.expected_costs_usd, made.policies, calibrating=study)
    figures = main_figures(told)
    write_report(Report("made-up", figures, PROVENANCE, NEW, all_sections(told, figures)), tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "the rule for each goal" in page
    assert "as many correct answers as the best single model, or 1 point fewer" in page
    assert f"{study.calibration.method} <i>chosen</i>" in page
    sections = json.loads((tmp_path / "report.json").read_text())["sections"]
    assert len(sections["calibrating"]["trials"]) == 4
    assert sections["calibrating"]["calibration"]["method"] == study.calibration.method
    assert sections["promises"][0]["goal"] == "accuracy=best-1"


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
    assert report["sections"]["tokens"][0]["input_tokens"]["value"] == 90
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


def test_overlap_with_an_artifact_that_does_not_record_its_queries_is_unknown(
    tmp_path: Path,
) -> None:
    """The page says so in a banner, and does not call the queries unseen."""
    artifact = copy_shipped(tmp_path / "artifact", None)
    overlap = TrainingOverlap.of_artifact(artifact, digests_of([forecast(0).example]))
    assert overlap == TrainingOverlap(1, None, None)
    figures = main_figures(minimal_experiment())
    write_report(Report("made-up", figures, PROVENANCE, overlap), tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "It is unknown whether these queries are new to the router" in page
    assert "that the router has not seen" not in page


def shouted(example: Example) -> Example:
    """Return a query with other case and spacing, in another dataset."""
    message = {"role": "user", "content": f"  {example.query.upper()}\n"}
    request = {**example.request, "messages": [message]}
    return replace(example, request=request, dataset="elsewhere")


def test_evaluate_rejects_another_pool(
    config: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If the pool lacks one of the artifact's arms, the command fails and names that arm."""
    values = yaml.safe_load(config.read_text())
    values["pool"] = [entry for entry in values["pool"] if entry["arm"] != ARMS[2]]
    config.write_text(yaml.safe_dump(values))
    asked = ["evaluate", str(SHIPPED), str(data), "--config", str(config)]
    assert main([*asked, "--out", str(tmp_path / "out")]) == 1
    assert (
        f"differs from the artifact's arms: only one of the two has {ARMS[2]}"
        in capsys.readouterr().err
    )
