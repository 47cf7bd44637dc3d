"""Sweeps: one run for each variant and seed, the best seed, and the spread of their metrics."""

from __future__ import annotations

import json
import logging
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from router_service.artifact import Measure
from switchcraft_training.cli import main
from switchcraft_training.evaluation.seeds import (
    RULES,
    FinishedRun,
    Point,
    print_table,
    summarize,
    write_summary,
)
from switchcraft_training.models.checkpoints import Epoch

pytestmark = pytest.mark.slow


def arguments(config: Path, data: Path, out: Path, *options: str) -> list[str]:
    """Return the arguments of `switchcraft-train sweep`."""
    return ["sweep", str(config), "--data", str(data), "--out", str(out), *options]


def test_sweep_resumes_and_runs_nothing_twice(
    config: Path,
    benchmark: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Finished runs are not repeated, and the summary contains all runs.

    A run with an additional recording is a different run. The seeds are the configuration's unless
    the command names others.
    """
    monkeypatch.setenv("COLUMNS", "200")
    shutil.copytree(benchmark / "bench", benchmark / "again")
    values = yaml.safe_load(config.read_text())
    values["also"] = [{"format": "bfcl", "path": "again"}]
    values["training"] = {"shares": {"forest": 1}}  # the fastest branch
    values["evaluation"] = {"protocol": "split", "baselines": False, "truncated": False}
    values["sweep"] = {"seeds": [1, 2]}
    config.write_text(yaml.safe_dump(values))
    caplog.set_level(logging.INFO)
    assert main(arguments(config, benchmark, tmp_path / "out", "--seeds", "1")) == 0
    assert "1 runs, of which 0 are finished" in caplog.text
    manifests = sorted((tmp_path / "out").glob("made-up-seed-*/artifact/manifest.json"))
    written = [path.stat().st_mtime_ns for path in manifests]
    assert len(written) == 1
    capsys.readouterr()
    status = main(arguments(config, benchmark, tmp_path / "out"))
    assert status == 0, capsys.readouterr().err
    assert "2 runs, of which 1 are finished" in caplog.text
    assert [path.stat().st_mtime_ns for path in manifests] == written
    (variant,) = json.loads((tmp_path / "out" / "sweep.json").read_text())["variants"]
    runs = variant["runs"]
    assert [run["seed"] for run in runs] == [1, 2]
    for metric in ("default_accuracy", "validation_accuracy"):
        values = [run["metrics"][metric]["value"] for run in runs]
        assert variant["metrics"][metric]["mean"] == pytest.approx(sum(values) / 2)
        assert variant["metrics"][metric]["seeds"] == 2
    assert variant["best"] in runs
    assert set(variant["rules"]) == set(RULES)
    assert {"large-FC", "oracle"} <= set(variant["entrants_on_validation"])
    assert variant["best"]["folder"] in (tmp_path / "out" / "sweep.html").read_text()
    assert "default accuracy" in capsys.readouterr().out


def finished(variant: str, seed: int, validation: float, test: float) -> FinishedRun:
    """Return a finished run with these accuracies."""
    values = {"validation_accuracy": validation, "default_accuracy": test}
    values |= {"validation_cost_usd": 0.1, "default_cost_usd": 0.1, "mean_auc": 0.7}
    values |= {"best_single_accuracy": 0.8, "oracle_accuracy": 0.9}
    metrics = {name: Measure(value=value, stderr=0.1, n=10) for name, value in values.items()}
    return FinishedRun(variant, "encoder", seed, f"{variant}-{seed}", metrics)


def test_best_seed_is_chosen_on_validation_and_spreads_are_over_all_seeds(tmp_path: Path) -> None:
    """The test results do not influence the choice; deviations are those of the sample."""
    rules = dict.fromkeys(RULES, Point(0.6, 0.001))
    epochs = (Epoch(1, 0.5, math.nan, math.nan, math.nan),)  # no validation rows
    runs = [
        replace(finished("whole", 1, 0.6, 0.9), rules=rules, epochs=epochs),
        replace(finished("whole", 2, 0.8, 0.7), rules=dict.fromkeys(RULES, Point(0.8, 0.002))),
        replace(finished("one", 1, 0.5, 0.5), rules=rules),
    ]
    variants = summarize(runs)
    whole, one = variants
    assert (whole.best, one.best) == (runs[1], runs[2])
    assert whole.metrics["default_accuracy"].mean == pytest.approx(0.8)
    assert whole.metrics["default_accuracy"].standard_deviation == pytest.approx(0.02**0.5)
    assert whole.rules["drift=0.1"].cost_usd.mean == pytest.approx(0.0015)
    assert one.metrics["default_accuracy"].standard_deviation is None
    console = Console(record=True, width=180)
    print_table(variants, console)
    text = console.export_text()
    assert "0.8 ± 0.14" in text
    assert "2 (best)" in text
    write_summary(variants, tmp_path)
    page = (tmp_path / "sweep.html").read_text()
    assert "theta=0.75" in page
    assert "Fine-tuning curves" in page
