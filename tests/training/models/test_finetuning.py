"""Fine-tuning of the encoder: several processes, interruption, precision, and shares as labels."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from switchcraft_training.models.finetuning import finetune_encoder
from tests.training.models.cases import config, encoder, rows, with_labels
from tests.training.models.job import main

pytestmark = pytest.mark.slow

JOB = "tests.training.models.job"
RUN_S = 250
TWO = (
    ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m"),
    {"ACCELERATE_USE_CPU": "true"},
)
"""The command that `accelerate launch` runs for two processes on the CPU."""


def job(
    out: Path, *arguments: str, launcher: tuple[tuple[str, ...], dict[str, str]] = (("-m",), {})
) -> subprocess.Popen[bytes]:
    """Start a fine-tuning run with one thread; its log is `out` + `.log`."""
    before, environment = launcher
    with out.with_suffix(".log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, *before, JOB, str(out), *arguments],
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
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


@pytest.mark.timeout(2 * RUN_S)
def test_two_processes_equal_one_with_joint_batches(tmp_path: Path) -> None:
    """Two processes with batches of 8 get the weights of one with 16, even for 61 rows."""
    joint = training(max_epochs=3, batch_size=16)
    alone = run_here(tmp_path / "one", "--rows", "61", *joint)
    arguments = ("--rows", "61", *training(max_epochs=3, batch_size=8))
    two = job(tmp_path / "two", *arguments, launcher=TWO)
    together = finish(two, tmp_path / "two")
    other = load_file(tmp_path / "two" / "1.safetensors")
    assert all(torch.equal(together[name], other[name]) for name in together)
    # FP32 sums in another order; a step of AdamW at this rate moves a weight by up to 1e-3.
    assert max(float((alone[name] - together[name]).abs().max()) for name in alone) < 1e-5
    first, second = (json.loads((tmp_path / f"{n}/0.json").read_text()) for n in ("one", "two"))
    assert [e["loss"] for e in first] == pytest.approx([e["loss"] for e in second], abs=1e-6)
    log = (tmp_path / "two.log").read_text()
    assert log.count("12 of 12 steps") == 1  # the main process's: 4 steps an epoch, not 8


@pytest.mark.timeout(3 * RUN_S)
def test_killed_run_resumes_to_the_same_weights(tmp_path: Path) -> None:
    """A run that was killed and restarted ends with the same bits, and logs that it resumed."""
    arguments = ("--dropout", "0.3", *training(max_epochs=40, patience_epochs=40))
    workspace = tmp_path / "work"
    killed = job(tmp_path / "killed", "--workspace", str(workspace), *arguments)
    deadline = time.monotonic() + RUN_S
    while not list(workspace.glob("checkpoints/*/epoch-000[3-9]")):
        assert killed.poll() is None, (tmp_path / "killed.log").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.005)
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
    # In a separate process, because accelerate allows one precision for each process.
    weights = finish(job(tmp_path / "bf16", "--rows", "400", *arguments), tmp_path / "bf16")
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    epochs = json.loads((tmp_path / "bf16" / "0.json").read_text())
    assert epochs[-1]["loss"] < epochs[0]["loss"] - 0.05
