"""A fine-tuning run, which tests call, or start in separate processes that they kill."""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from switchcraft_training.data.table import Table
from switchcraft_training.models.finetuning import build_branch, finetune_encoder
from switchcraft_training.models.optimization import (
    collate,
)
from tests.training.models.cases import config, encoder, rows, with_labels


def with_unknown(data: Table) -> Table:
    """Return the rows with a fifth of the labels unknown, mostly at the start."""
    rng = np.random.default_rng(5)
    labels = data.labels.copy()
    chance = np.linspace(0.4, 0.0, len(labels))[:, None]
    labels[rng.random(labels.shape) < chance] = np.nan
    return with_labels(data, labels)


def main(argv: Sequence[str] | None = None) -> None:
    """Fine-tune, and write weights and epochs to the folder."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--workspace", type=Path)
    parser.add_argument("--training", type=json.loads, default={})
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--dropout", type=float, default=0.0)
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO)
    settings, train, validation = config(**arguments.training), rows(arguments.rows, 1), rows(33, 2)
    tuned = finetune_encoder(
        encoder(dropout=arguments.dropout),
        settings,
        with_unknown(train),
        validation,
        workspace=arguments.workspace,
    )
    state = tuned.branch.state_dict()
    plain = build_branch(encoder(), settings, train.labels).eval()
    plain.load_state_dict(state)
    batch = collate(validation)
    with torch.no_grad():
        logits = [b(batch.input_ids, batch.attention_mask) for b in (tuned.branch, plain)]
    assert torch.equal(*logits), "the branch that is returned computes in full precision"
    arguments.out.mkdir(parents=True, exist_ok=True)
    epochs = json.dumps([asdict(epoch) for epoch in tuned.epochs])
    save_file(state, arguments.out / "0.safetensors")
    (arguments.out / "0.json").write_text(epochs)


if __name__ == "__main__":
    main()
