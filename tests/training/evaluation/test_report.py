"""The report: one self-contained file that says what was measured."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from router_service.core.artifact import FrontierPoint, Measure, Provenance
from training.evaluation.evaluate import Evaluation, Outcomes, evaluate
from training.evaluation.report import Report, pareto_front, write_report
from training.finetune.loop import Epoch


@pytest.fixture
def evaluation() -> Evaluation:
    """Return an evaluation of two arms on fifty made-up queries."""
    rng = np.random.default_rng(0)
    correct = (rng.random((50, 2)) < [0.6, 0.9]).astype(float)
    outcomes = Outcomes(("small<1>", "large"), correct, np.full((50, 2), [1e-4, 1e-2]))
    return evaluate(outcomes, rng.random((50, 2)), [1e-4, 1e-2], {"default": "theta=0.5"})


@pytest.fixture
def report(evaluation: Evaluation) -> Report:
    """Return a report around that evaluation."""
    return Report(
        name="made-up",
        split_sizes={"train": 400, "validation": 50, "test": 50},
        label_rates={"simple": {"small<1>": 0.6, "large": 0.9}},
        epochs=(Epoch(1, 0.6, 0.5, 0.7), Epoch(2, 0.5, 0.45, 0.75)),
        validation=evaluation,
        test=evaluation,
        parity={"int8 graph: mean difference": 0.01},
        provenance=Provenance(
            created="2030-01-01T00:00:00+00:00",
            commit="c0ffee",
            config="name: made-up\n",
            seed=1,
            data_sha256="00",
            versions={"torch": "2"},
        ),
    )


def test_the_page_is_one_file_and_shows_the_measured_numbers(
    report: Report, tmp_path: Path
) -> None:
    """The page fetches nothing, escapes names, and prints accuracy as it was measured."""
    write_report(report, tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert not re.search(r"<(?:script|link|img|iframe)\b|url\(http|@import", page)
    assert "small&lt;1&gt;" in page
    large = next(entry for entry in report.test.entries if entry.name == "large")
    assert f"<td>{large.accuracy.value * 100:.1f}</td>" in page
    assert page.count("<svg") == 2


def test_the_json_holds_every_figure_with_its_error(report: Report, tmp_path: Path) -> None:
    """`report.json` carries n and standard error beside each value."""
    write_report(report, tmp_path)
    values = json.loads((tmp_path / "report.json").read_text())
    entry = values["test"]["entries"][0]
    assert set(entry["accuracy"]) == {"value", "stderr", "n"}
    assert values["test"]["auc"]["n"] == 50
    assert values["provenance"]["commit"] == "c0ffee"


def test_the_same_report_is_the_same_bytes(report: Report, tmp_path: Path) -> None:
    """Writing twice gives equal files, so that a changed file is a changed result."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_report(report, tmp_path / name)
    for name in ("report.html", "report.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_pareto_front_drops_what_a_cheaper_point_matches() -> None:
    """Of points at rising cost, only those that gain accuracy stay."""

    def point(policy: str, accuracy: float, cost: float) -> FrontierPoint:
        return FrontierPoint(
            policy=policy,
            accuracy=Measure(value=accuracy, stderr=0, n=1),
            cost_usd=Measure(value=cost, stderr=0, n=1),
        )

    points = [point("c", 0.9, 3), point("a", 0.8, 1), point("b", 0.7, 2), point("d", 0.9, 4)]
    assert [p.policy for p in pareto_front(points)] == ["a", "c"]
