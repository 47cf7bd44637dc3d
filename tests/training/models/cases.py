"""A small router for tests: configuration, encoder and training rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DistilBertConfig, DistilBertModel

from router_service.core.packing import Packed
from switchcraft_training.config import RunConfig
from switchcraft_training.models.batches import Rows
from switchcraft_training.models.encoders import PretrainedEncoder

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
    return PretrainedEncoder("tiny", DistilBertModel(size), tokenizer=None)  # type: ignore[arg-type]


def rows(n: int, seed: int, heads: int = 2) -> Rows:
    """Return rows whose first label depends on a token, and whose second depends on a feature."""
    rng = np.random.default_rng(seed)
    packed, labels = [], []
    for _ in range(n):
        word, count = rng.integers(0, 2, 2)
        body = rng.integers(10, 50, rng.integers(3, 12)).tolist()
        packed.append(Packed((1, 5 + int(word), *body, 2), (1.0, 9.0 * float(count)), ()))
        labels.append([word, count, *rng.integers(0, 2, heads - 2)])
    return rows_of(packed, np.array(labels, dtype=np.float32))


def rows_of(packed: Sequence[Packed], labels: NDArray[np.float32]) -> Rows:
    """Return rows of which none repeats another, and of which nobody knows what calls they ask."""
    unknown = np.full(len(packed), np.nan, dtype=np.float32)
    return Rows(tuple(packed), labels, calls=unknown, groups=np.arange(len(packed)))


def with_labels(data: Rows, labels: NDArray[np.float32]) -> Rows:
    """Return the rows with other labels."""
    return replace(data, labels=labels)
