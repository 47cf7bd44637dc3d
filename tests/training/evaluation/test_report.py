"""The report: a self-contained file with all measurements."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from switchcraft_training.evaluation.experiment import Experiment
from switchcraft_training.evaluation.report import Report, write_report
from switchcraft_training.evaluation.sections import all_sections, main_figures
from switchcraft_training.models.checkpoints import Epoch
from switchcraft_training.records import Json
from tests.training.evaluation.cases import PROVENANCE, bare, full

OPTIONAL = ("tokens", "parts", "stability")


def report_on(experiment: Experiment) -> Report:
    """Return a report without training data."""
    figures = main_figures(experiment)
    return Report("made-up", figures, PROVENANCE, all_sections(experiment, figures))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the full report."""
    folder = tmp_path_factory.mktemp("report")
    write_report(report_on(full()), folder)
    return folder


@pytest.fixture(scope="module")
def values(written: Path) -> Json:
    """Read the numbers of the full report."""
    return json.loads((written / "report.json").read_text())


def test_the_page_is_one_file_and_shows_the_measured_numbers(written: Path, values: Json) -> None:
    """The page loads no other files, escapes names, and shows the measured accuracy."""
    page = (written / "report.html").read_text()
    assert not re.search(r"<(?:script|link|img|iframe)\b|url\(http|@import", page)
    assert "small&lt;1&gt;" in page
    assert "<1>" not in page
    large = next(entry for entry in values["test"]["entries"] if entry["name"] == "large")
    assert f">{large['accuracy']['value'] * 100:.1f}<small>" in page


def test_plots_take_the_page_s_text_colour(written: Path) -> None:
    """Text and axes use currentColor, so they are legible on dark and on light backgrounds."""
    page = (written / "report.html").read_text()
    assert "#010203" not in page
    assert page.count("currentColor") > 100


def test_the_json_holds_every_figure_with_its_error(values: Json) -> None:
    """`report.json` contains n and an error for each value."""
    entry = values["test"]["entries"][0]
    assert set(entry["accuracy"]) == {"value", "stderr", "n"}
    assert len(entry["difference_interval"]) == 2
    assert set(values["sections"]["field"][0]["aiq"]) == {"value", "stderr", "interval", "n"}
    assert values["test"]["auc"]["n"] == 60
    assert values["provenance"]["commit"] == "c0ffee"


def test_every_section_with_input_is_there(written: Path) -> None:
    """With all inputs, the page contains every section, and every link leads to a section."""
    page = (written / "report.html").read_text()
    links = re.findall(r'href="#([\w-]+)"', page)
    assert set(OPTIONAL) <= set(links)
    assert all(f'id="{link}"' in page for link in links)


def test_a_section_without_input_is_left_out(tmp_path: Path) -> None:
    """Without tokens, variants and runs, the page has neither their sections nor links to them."""
    write_report(report_on(bare()), tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert not [name for name in OPTIONAL if f'id="{name}"' in page or f'"#{name}"' in page]


def test_a_run_s_own_story_is_told(tmp_path: Path) -> None:
    """The course of training, label rates and folds appear if the run provides them."""
    figures = main_figures(bare())
    report = Report(
        name="made-up",
        test=figures,
        provenance=PROVENANCE,
        folds=5,
        teaching=400,
        label_rates={"simple": {"small<1>": 0.6, "large": 0.9}},
        epochs=(Epoch(1, 0.6, 0.5, 0.7), Epoch(2, 0.5, 0.45, 0.75)),
        parity={"int8 graph: mean difference": 0.0123},
    )
    write_report(report, tmp_path)
    page = (tmp_path / "report.html").read_text()
    for told in ("other of 5 folds", "up to 400 queries", "Course of training", "0.0123"):
        assert told in page


def test_the_same_report_is_the_same_bytes(tmp_path: Path) -> None:
    """Writing twice gives identical files, so a changed file means a changed result."""
    report = report_on(bare())
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_report(report, tmp_path / name)
    for name in ("report.html", "report.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
