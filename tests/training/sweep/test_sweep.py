"""Sweeps: a run for each seed and encoder, none of them twice, and their spread."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from router_service.core.artifact import Measure
from router_service.core.errors import ConfigError
from switchcraft_training.config import RunConfig
from switchcraft_training.sweep.stage import run_sweep
from switchcraft_training.sweep.summary import Measured, summarize
from switchcraft_training.sweep.table import print_table


def sweep(config: Path, data: Path, out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run `switchcraft-train sweep`, on one thread."""
    command = [
        sys.executable,
        "-m",
        "switchcraft_training.cli",
        "sweep",
        str(config),
        "--data",
        str(data),
    ]
    return subprocess.run(
        [*command, "--out", str(out), *options],
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def test_a_sweep_goes_on_where_it_was_left(config: Path, benchmark: Path, tmp_path: Path) -> None:
    """Runs that ended are not run again, here or through Ray; all of them are in the summary.

    A run is of all its sources, so of a further recording too.
    """
    shutil.copytree(benchmark / "bench", benchmark / "again")
    values = yaml.safe_load(config.read_text())
    values["also"] = [{"format": "bfcl", "path": "again"}]
    config.write_text(yaml.safe_dump(values))
    first = sweep(config, benchmark, tmp_path / "out", "--seeds", "1")
    assert first.returncode == 0, first.stderr
    assert "1 runs, of which 0 have ended" in first.stderr
    manifests = sorted((tmp_path / "out").glob("encoder-seed-*/artifact/manifest.json"))
    written = [path.stat().st_mtime_ns for path in manifests]
    assert len(written) == 1
    second = sweep(config, benchmark, tmp_path / "out", "--seeds", "1", "2", "--ray")
    assert second.returncode == 0, second.stderr
    assert "2 runs, of which 1 have ended" in second.stderr
    assert [path.stat().st_mtime_ns for path in manifests] == written
    summary = json.loads((tmp_path / "out" / "sweep.json").read_text())
    assert [run["seed"] for run in summary["runs"]] == [1, 2]
    (spreads,) = summary["encoders"].values()
    accuracies = [run["metrics"]["default_accuracy"]["value"] for run in summary["runs"]]
    assert spreads["default_accuracy"]["mean"] == pytest.approx(sum(accuracies) / 2)
    assert spreads["default_accuracy"]["seeds"] == 2
    assert "default accuracy" in second.stdout


def test_a_run_that_fails_stops_no_other_and_is_named(
    config: Path, benchmark: Path, tmp_path: Path
) -> None:
    """An encoder that does not load is reported with its folder, and the status says so."""
    options = ("--seeds", "1", "--encoders", str(tmp_path / "nowhere"))
    done = sweep(config, benchmark, tmp_path / "out", *options)
    assert done.returncode == 1
    assert "nowhere-seed-1: " in done.stderr
    assert json.loads((tmp_path / "out" / "sweep.json").read_text())["runs"] == []


def test_two_encoders_of_one_name_are_refused(config: Path, tmp_path: Path) -> None:
    """Runs never share a folder."""
    values = RunConfig.model_validate(yaml.safe_load(config.read_text()))
    with pytest.raises(ConfigError, match="same last name"):
        run_sweep(values, tmp_path, tmp_path, [1], ["a/tiny", "b/tiny"], None)


def test_the_spread_is_the_sample_s() -> None:
    """Mean and standard deviation are of the seeds of one encoder; one seed has no deviation."""
    runs = [
        Measured(encoder, seed, "f", {"mean_auc": Measure(value=value, stderr=0.1, n=10)})
        for encoder, seed, value in (("a", 1, 0.6), ("a", 2, 0.8), ("b", 1, 0.5))
    ]
    summary = summarize(runs)
    assert summary["encoders"]["a"]["mean_auc"]["mean"] == pytest.approx(0.7)
    assert summary["encoders"]["a"]["mean_auc"]["standard_deviation"] == pytest.approx(0.02**0.5)
    assert summary["encoders"]["b"]["mean_auc"]["standard_deviation"] is None
    console = Console(record=True, width=120)
    print_table(summary, console)
    assert "0.7 ± 0.14" in console.export_text()
