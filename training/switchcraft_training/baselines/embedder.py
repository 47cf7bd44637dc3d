"""Frozen embeddings of token ids, computed once for all baselines of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from router_service.core.packing import Ids
from switchcraft_training.evaluation.table import Floats
from switchcraft_training.finetune.encoders import PretrainedEncoder
from switchcraft_training.finetune.frozen import row_inputs
from switchcraft_training.finetune.model import EncoderBranch


class Embedder(Protocol):
    """Token ids -> vectors."""

    def __call__(self, rows: Sequence[Ids]) -> Floats:
        """Return a vector of length 1 for each row, (rows, hidden)."""
        ...


class EncoderEmbedder:
    """The mean of a pretrained encoder's hidden states, brought to length 1 (appendix on MIRT)."""

    def __init__(self, encoder: PretrainedEncoder, cache: Path | None = None) -> None:
        """Take over `encoder`; states are kept in memory, and in the folder `cache`."""
        self._branch = EncoderBranch(encoder.model, 1, pooling="mean", dropout=0.0)
        self._cache = cache
        self._vectors: dict[Ids, Floats] = {}

    def __call__(self, rows: Sequence[Ids]) -> Floats:
        """Return (rows, hidden); a row that was seen before costs nothing."""
        new = list(set(rows) - self._vectors.keys())
        if new:
            states = torch.cat(row_inputs(self._branch, "all", new, self._cache))  # (new, hidden)
            vectors = torch.nn.functional.normalize(states, dim=1).double().numpy()
            self._vectors.update(zip(new, vectors, strict=True))
        return np.stack([self._vectors[row] for row in rows])
