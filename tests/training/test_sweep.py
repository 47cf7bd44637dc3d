"""Sweeps: one run for each seed and encoder, and the spread of their metrics."""

from __future__ import annotations

import json
import logging
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from router_service.core.artifact import Measure
from router_service.core.errors import ConfigError
from switchcraft_training.cli import main
from switchcraft_training.config import RunConfig
from switchcraft_training.sweep import FinishedRun, print_table, run_sweep, summarize

SWEEP_S = 600
"""A minute on an idle machine: Ray's worker imports torch again."""


@pytest.fixture
def ray_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use one thread in Ray's workers and a wide terminal; restore the handler of SIGTERM."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("COLUMNS", "200")
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


def arguments(config: Path, data: Path, out: Path, *options: str) -> list[str]:
    """Return the arguments of `switchcraft-train sweep`."""
    return ["sweep", str(config), "--data", str(data), "--out", str(out), *options]


@pytest.mark.timeout(SWEEP_S)
@pytest.mark.usefixtures("ray_environment")
def test_sweep_resumes_and_runs_nothing_twice(
    config: Path,
    benchmark: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Finished runs are not repeated, locally or on Ray, and the summary contains all runs.

    A run with an additional recording is a different run.
    """
    shutil.copytree(benchmark / "bench", benchmark / "again")
    values = yaml.safe_load(config.read_text())
    values["also"] = [{"format": "bfcl", "path": "again"}]
    values["training"] = {"shares": {"forest": 1}}  # the fastest branch
    config.write_text(yaml.safe_dump(values))
    caplog.set_level(logging.INFO)
    assert main(arguments(config, benchmark, tmp_path / "out", "--seeds", "1")) == 0
    assert "1 runs, of which 0 are finished" in caplog.text
    manifests = sorted((tmp_path / "out").glob("encoder-seed-*/artifact/manifest.json"))
    written = [path.stat().st_mtime_ns for path in manifests]
    assert len(written) == 1
    options = ("--seeds", "1", "2", "--ray")
    capsys.readouterr()
    status = main(arguments(config, benchmark, tmp_path / "out", *options))
    assert status == 0, capsys.readouterr().err
    assert "2 runs, of which 1 are finished" in caplog.text
    assert [path.stat().st_mtime_ns for path in manifests] == written
    summary = json.loads((tmp_path / "out" / "sweep.json").read_text())
    assert [run["seed"] for run in summary["runs"]] == [1, 2]
    (spreads,) = summary["encoders"].values()
    accuracies = [run["metrics"]["default_accuracy"]["value"] for run in summary["runs"]]
    assert spreads["default_accuracy"]["mean"] == pytest.approx(sum(accuracies) / 2)
    assert spreads["default_accuracy"]["seeds"] == 2
    assert "default accuracy" in capsys.readouterr().out


def test_failed_run_is_reported_with_its_folder(
    config: Path, benchmark: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An encoder that does not load is reported with its folder, and the exit status is 1."""
    options = ("--seeds", "1", "--encoders", str(tmp_path / "nowhere"))
    assert main(arguments(config, benchmark, tmp_path / "out", *options)) == 1
    assert "nowhere-seed-1: " in capsys.readouterr().err
    assert json.loads((tmp_path / "out" / "sweep.json").read_text())["runs"] == []


def test_encoders_with_the_same_name_are_rejected(config: Path, tmp_path: Path) -> None:
    """Encoders with the same name are rejected, because their runs would share a folder."""
    values = RunConfig.model_validate(yaml.safe_load(config.read_text()))
    with pytest.raises(ConfigError, match="same last name"):
        run_sweep(values, tmp_path, tmp_path, [1], ["a/tiny", "b/tiny"], None)


def test_spread_is_the_standard_deviation_of_the_sample() -> None:
    """Mean and standard deviation are computed over the seeds of one encoder."""
    runs = [
        FinishedRun(encoder, seed, "f", {"mean_auc": Measure(value=value, stderr=0.1, n=10)})
        for encoder, seed, value in (("a", 1, 0.6), ("a", 2, 0.8), ("b", 1, 0.5))
    ]
    summary = summarize(runs)
    assert summary["encoders"]["a"]["mean_auc"]["mean"] == pytest.approx(0.7)
    assert summary["encoders"]["a"]["mean_auc"]["standard_deviation"] == pytest.approx(0.02**0.5)
    assert summary["encoders"]["b"]["mean_auc"]["standard_deviation"] is None
    console = Console(record=True, width=120)
    print_table(summary, console)
    assert "0.7 ± 0.14" in console.export_text()
