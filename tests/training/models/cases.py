"""A small router for tests: configuration, encoder and training rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DistilBertConfig, DistilBertModel

from router_service.predictor.packing import Packed
from switchcraft_training.config import RunConfig
from switchcraft_training.data.table import Table
from switchcraft_training.models.encoders import PretrainedEncoder
from switchcraft_training.records import Example

FEATURES = ("tools", "commas")


def config(frozen_layers: object = None, pooling: str = "cls", **training: object) -> RunConfig:
    """Return the configuration of a run with two arms and a tiny network."""
    return RunConfig.model_validate(
        {
            "name": "tiny",
            "source": {"format": "bfcl", "path": "none"},
            "pool": [
                {"arm": name, "price": {"input_usd_per_mtok": 1, "output_usd_per_mtok": 1}}
                for name in "ab"
            ],
            "encoder": {"frozen_layers": frozen_layers, "pooling": pooling},
            "packing": {"features": FEATURES},
            "training": {
                "learning_rate": 1e-3,
                "max_epochs": 12,
                "patience_epochs": 12,
                "select_on": "loss",
                **training,
            },
        }
    )


def encoder(seed: int = 0, layers: int = 1, dropout: float = 0.1) -> PretrainedEncoder:
    """Return a small encoder with random weights."""
    torch.manual_seed(seed)
    size = DistilBertConfig(
        vocab_size=50,
        dim=16,
        hidden_dim=32,
        n_layers=layers,
        n_heads=2,
        dropout=dropout,
        attention_dropout=dropout,
    )
    return PretrainedEncoder("tiny", DistilBertModel(size), tokenizer=None)  # pyrefly: ignore[bad-argument-type]


def rows(n: int, seed: int, heads: int = 2) -> Table:
    """Return rows whose first label depends on a token, and whose second depends on a feature."""
    rng = np.random.default_rng(seed)
    packed, labels = [], []
    for _ in range(n):
        word, count = rng.integers(0, 2, 2)
        body = rng.integers(10, 50, rng.integers(3, 12)).tolist()
        packed.append(Packed((1, 5 + int(word), *body, 2), (1.0, 9.0 * float(count)), ()))
        labels.append([word, count, *rng.integers(0, 2, heads - 2)])
    return rows_of(packed, np.array(labels, dtype=np.float32))


def rows_of(packed: Sequence[Packed], labels: NDArray[np.float32]) -> Table:
    """Return a table of packed rows without near-duplicates; nothing else is known about them."""
    examples = tuple(Example(str(i), "", {}) for i in range(len(packed)))
    arms = tuple(f"arm {i}" for i in range(labels.shape[1]))
    return Table(examples, arms, labels.astype(np.float64), packed=tuple(packed))


def with_labels(data: Table, labels: NDArray[np.float32]) -> Table:
    """Return the rows with other labels."""
    return replace(data, correct=labels.astype(np.float64))
