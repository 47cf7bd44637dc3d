"""Fine-tuning of the encoder: interruption, precision, frozen layers, and a student of it."""

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

from router_service.predictor.words import Ids
from switchcraft_training.config import DistilledConfig, EncoderConfig
from switchcraft_training.models.distillation import distil
from switchcraft_training.models.encoders import PretrainedEncoder
from switchcraft_training.models.finetuning import build_branch, finetune_encoder
from switchcraft_training.models.frozen import Frozen, freeze, row_inputs
from switchcraft_training.models.model import EncoderBranch
from switchcraft_training.models.optimization import padded
from tests.serving import wait_for
from tests.training.models.cases import config, encoder, rows, with_labels
from tests.training.models.job import main

JOB = "tests.training.models.job"


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
    assert run.wait() == 0, out.with_suffix(".log").read_text()
    return load_file(out / "0.safetensors")


def run_here(out: Path, *arguments: str) -> dict[str, Tensor]:
    """Return the weights of a run in this process, which also uses one thread."""
    main([str(out), *arguments])
    return load_file(out / "0.safetensors")


def training(**settings: object) -> tuple[str, str]:
    """Return the option that changes hyperparameters."""
    return ("--training", json.dumps(settings))


@pytest.mark.slow
def test_killed_run_resumes_to_the_same_weights(tmp_path: Path) -> None:
    """A run that was killed and restarted ends with the same bits, and logs that it resumed."""
    arguments = ("--dropout", "0.3", *training(max_epochs=40, patience_epochs=40))
    workspace = tmp_path / "work"
    killed = job(tmp_path / "killed", "--workspace", str(workspace), *arguments)

    def has_checkpoints() -> bool:
        assert killed.poll() is None, (tmp_path / "killed.log").read_text()
        return bool(list(workspace.glob("checkpoints/*/epoch-000[3-9].pt")))

    wait_for(has_checkpoints, "three epochs have passed")
    killed.kill()
    killed.wait()
    assert not (tmp_path / "killed").exists()
    again = job(tmp_path / "again", "--workspace", str(workspace), *arguments)
    resumed = finish(again, tmp_path / "again")
    assert "fine-tuning resumed from" in (tmp_path / "again.log").read_text()
    undisturbed = run_here(tmp_path / "whole", *arguments)
    assert all(torch.equal(resumed[name], undisturbed[name]) for name in undisturbed)
    assert (tmp_path / "again/0.json").read_text() == (tmp_path / "whole/0.json").read_text()


@pytest.mark.slow
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


@pytest.mark.slow
def test_bf16_learns_and_keeps_fp32_weights(tmp_path: Path) -> None:
    """Mixed precision affects only products: weights stay FP32, and the labels are learned."""
    arguments = training(max_epochs=6, precision="bf16")
    weights = run_here(tmp_path / "bf16", "--rows", "400", *arguments)
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    epochs = json.loads((tmp_path / "bf16" / "0.json").read_text())
    assert epochs[-1]["loss"] < epochs[0]["loss"] - 0.05


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("frozen_layers", [1, 2, 3, "all"])
def test_split_encoder_equals_the_whole(frozen_layers: Frozen, pooling: str) -> None:
    """Logits from cached states equal those of the whole encoder, which is exported."""
    data = rows(20, 1)
    settings = config(frozen_layers, pooling)
    branch = build_branch(encoder(layers=3), settings, data.labels).eval()
    ids = [row.token_ids for row in data.packed]
    trained = freeze(branch, frozen_layers).eval()
    with torch.no_grad():
        parted = trained(*padded(row_inputs(branch, frozen_layers, ids, None), 0))
        whole = branch(*padded([torch.tensor(row) for row in ids], 0))
    assert (parted - whole).abs().max() < 1e-5
    assert whole.std() > 1e-3


@pytest.mark.parametrize("frozen_layers", [0, 1, "all"])
def test_only_unfrozen_weights_change(frozen_layers: Frozen) -> None:
    """Frozen weights keep their bits; layers above them and the head learn."""
    start = encoder(layers=2)
    before = {name: tensor.clone() for name, tensor in start.model.state_dict().items()}
    tuned = finetune_encoder(start, config(frozen_layers, max_epochs=2), rows(64, 1), rows(32, 2))
    after = tuned.branch.encoder.state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    fixed = {0: ("embeddings",), 1: ("embeddings", "transformer.layer.0"), "all": ("",)}
    assert frozen_layers is not None
    assert not [name for name in moved if name.startswith(fixed[frozen_layers])]
    assert bool(moved) == (frozen_layers != "all")


@pytest.mark.parametrize("frozen_layers", [1, "all"])
def test_states_are_computed_once_for_all_folds(
    frozen_layers: Frozen, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another seed and fold reuse states, and compute only those of new rows."""
    caplog.set_level(logging.INFO)
    first, second = config(frozen_layers, max_epochs=1), config(frozen_layers, max_epochs=1)
    second = second.model_copy(update={"seed": 8})
    data = rows(60, 1)
    folds = data.take(range(40)), data.take(range(40, 50)), data.take(range(50, 60))
    finetune_encoder(encoder(layers=2), first, folds[0], folds[1], workspace=tmp_path)
    assert "0 reused, 50 computed" in caplog.text
    finetune_encoder(encoder(layers=2), second, folds[1], folds[2], workspace=tmp_path)
    assert "10 reused, 10 computed" in caplog.text
    caplog.clear()
    finetune_encoder(encoder(3, layers=2), second, folds[1], folds[2], workspace=tmp_path)
    assert "0 reused, 20 computed" in caplog.text  # other weights say something else


def student(epochs: int, **changes: object) -> EncoderConfig:
    """Return the settings of a student with half the width of its teacher."""
    size = {"hidden_size": 8, "intermediate_size": 32, "epochs": epochs, **changes}
    return EncoderConfig(distilled=DistilledConfig.model_validate(size), pooling="mean")


def token_ids(n: int, seed: int) -> list[Ids]:
    """Return rows of token ids."""
    return [row.token_ids for row in rows(n, seed).packed]


def pooled(which: PretrainedEncoder, asked: list[Ids]) -> torch.Tensor:
    """Return one state per row, (n, hidden)."""
    branch = EncoderBranch(which.model, 1, pooling="mean", dropout=0.0)
    return torch.cat(row_inputs(branch, "all", asked, None))


def unexplained(student: PretrainedEncoder, teacher: PretrainedEncoder) -> float:
    """Return the share of the teacher's states on new rows that no linear map predicts."""
    said, wanted = (pooled(each, token_ids(400, 9)) for each in (student, teacher))
    known = torch.cat([said, torch.ones(400, 1)], dim=1)
    left = wanted - known @ torch.linalg.lstsq(known, wanted).solution
    return float(left.var(0).sum() / wanted.var(0).sum())


def test_student_learns_the_states_of_its_teacher(tmp_path: Path) -> None:
    """A student explains more on new rows; its embeddings stay the teacher's components."""
    teacher, texts = encoder(layers=2, dropout=0.0), token_ids(300, 1)
    barely, taught = (
        distil(teacher, student(epochs, learning_rate=rate), texts, tmp_path)
        for epochs, rate in ((1, 1e-9), (12, 1e-2))
    )
    assert unexplained(taught, teacher) < 0.8 * unexplained(barely, teacher)
    words = "embeddings.word_embeddings.weight"
    one, other = (each.model.state_dict()[words] for each in (barely, taught))
    assert torch.equal(one, other)
    assert taught.model.config.hidden_size == 8
    assert (taught.name, taught.tokenizer) == (teacher.name, teacher.tokenizer)


def test_student_is_trained_once(tmp_path: Path) -> None:
    """Equal inputs reuse the student in the workspace; other rows make another student."""
    first = distil(encoder(), student(1), token_ids(40, 1), tmp_path)
    (kept,) = (tmp_path / "distilled").iterdir()
    written = kept.stat().st_mtime_ns
    again = distil(encoder(), student(1), token_ids(40, 1), tmp_path)
    assert kept.stat().st_mtime_ns == written
    weights = first.model.state_dict()
    assert all(
        torch.equal(weights[name], value) for name, value in again.model.state_dict().items()
    )
    assert all(parameter.requires_grad for parameter in again.model.parameters())
    distil(encoder(), student(1), token_ids(40, 2), tmp_path)
    assert len(list((tmp_path / "distilled").iterdir())) == 2
