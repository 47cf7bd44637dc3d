"""Fine-tuning of the encoder: interruption, precision, and shares as labels."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from switchcraft_training.models.finetuning import finetune_encoder
from tests.serving import wait_for
from tests.training.models.cases import config, encoder, rows, with_labels
from tests.training.models.job import main

pytestmark = pytest.mark.slow

JOB = "tests.training.models.job"
RUN_S = 250


def job(out: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a fine-tuning run with one thread; its log is `out` + `.log`."""
    with out.with_suffix(".log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", JOB, str(out), *arguments],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=log,
            stderr=log,
        )


def finish(run: subprocess.Popen[bytes], out: Path) -> dict[str, Tensor]:
    """Return the weights of a finished run."""
    assert run.wait(timeout=RUN_S) == 0, out.with_suffix(".log").read_text()
    return load_file(out / "0.safetensors")


def run_here(out: Path, *arguments: str) -> dict[str, Tensor]:
    """Return the weights of a run in this process, which also uses one thread."""
    main([str(out), *arguments])
    return load_file(out / "0.safetensors")


def training(**settings: object) -> tuple[str, str]:
    """Return the option that changes hyperparameters."""
    return ("--training", json.dumps(settings))


@pytest.mark.timeout(3 * RUN_S)
def test_killed_run_resumes_to_the_same_weights(tmp_path: Path) -> None:
    """A run that was killed and restarted ends with the same bits, and logs that it resumed."""
    arguments = ("--dropout", "0.3", *training(max_epochs=40, patience_epochs=40))
    workspace = tmp_path / "work"
    killed = job(tmp_path / "killed", "--workspace", str(workspace), *arguments)

    def has_checkpoints() -> bool:
        assert killed.poll() is None, (tmp_path / "killed.log").read_text()
        return bool(list(workspace.glob("checkpoints/*/epoch-000[3-9].pt")))

    wait_for(has_checkpoints, "three epochs have passed", RUN_S)
    killed.kill()
    killed.wait()
    assert not (tmp_path / "killed").exists()
    again = job(tmp_path / "again", "--workspace", str(workspace), *arguments)
    resumed = finish(again, tmp_path / "again")
    assert "fine-tuning resumed from" in (tmp_path / "again.log").read_text()
    undisturbed = run_here(tmp_path / "whole", *arguments)
    assert all(torch.equal(resumed[name], undisturbed[name]) for name in undisturbed)
    assert (tmp_path / "again/0.json").read_text() == (tmp_path / "whole/0.json").read_text()


def test_finished_run_is_reused_only_for_equal_inputs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A finished run is not repeated; another rate, labels or weights make another run."""
    caplog.set_level(logging.INFO)
    settings, train, validation = config(max_epochs=2), rows(32, 1), rows(16, 2)
    first = finetune_encoder(encoder(), settings, train, validation, workspace=tmp_path)
    again = finetune_encoder(encoder(), settings, train, validation, workspace=tmp_path)
    assert caplog.text.count("was already finished") == 1
    assert first.epochs == again.epochs
    weights = first.branch.state_dict()
    assert all(torch.equal(weights[n], t) for n, t in again.branch.state_dict().items())
    flipped = with_labels(train, 1 - train.labels)
    finetune_encoder(encoder(), settings, flipped, validation, workspace=tmp_path)
    finetune_encoder(encoder(1), settings, train, validation, workspace=tmp_path)
    other_rate = config(max_epochs=2, learning_rate=2e-3)
    finetune_encoder(encoder(), other_rate, train, validation, workspace=tmp_path)
    assert caplog.text.count("was already finished") == 1
    assert len(list(tmp_path.glob("checkpoints/*/finished.safetensors"))) == 4


def test_bf16_learns_and_keeps_fp32_weights(tmp_path: Path) -> None:
    """Mixed precision affects only products: weights stay FP32, and the labels are learned."""
    arguments = training(max_epochs=6, precision="bf16")
    weights = run_here(tmp_path / "bf16", "--rows", "400", *arguments)
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    epochs = json.loads((tmp_path / "bf16" / "0.json").read_text())
    assert epochs[-1]["loss"] < epochs[0]["loss"] - 0.05
