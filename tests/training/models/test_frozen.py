"""Frozen layers: their cached states equal the encoder's, and are computed once."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from switchcraft_training.models.finetuning import build_branch, finetune_encoder
from switchcraft_training.models.frozen import Frozen, freeze, row_inputs
from switchcraft_training.models.optimization import padded
from tests.training.models.cases import config, encoder, rows


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
