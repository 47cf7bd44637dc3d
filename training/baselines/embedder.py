"""Frozen embeddings of token ids, computed once for all baselines of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from router_service.core.packing import Ids
from training.evaluation.table import Floats
from training.finetune.encoders import PretrainedEncoder

BATCH_ROWS = 32


class Embedder(Protocol):
    """Token ids -> vectors."""

    def __call__(self, rows: Sequence[Ids]) -> Floats:
        """Return a vector of length 1 for each row, (rows, hidden)."""
        ...


class EncoderEmbedder:
    """The mean of a pretrained encoder's hidden states, brought to length 1 (appendix on MIRT)."""

    def __init__(self, encoder: PretrainedEncoder) -> None:
        """Take over `encoder`: it is switched from training to inference."""
        self._model = encoder.model
        self._model.train(mode=False)
        self._vectors: dict[Ids, Floats] = {}

    def __call__(self, rows: Sequence[Ids]) -> Floats:
        """Return (rows, hidden); a row that was seen before costs nothing."""
        # By length: padding is computed too.
        new = sorted(set(rows) - self._vectors.keys(), key=len)
        batches = range(0, len(new), BATCH_ROWS)
        for start in tqdm(batches, desc="embedding", unit="batch", disable=not new):
            batch = new[start : start + BATCH_ROWS]
            self._vectors.update(zip(batch, self._embed(batch), strict=True))
        return np.stack([self._vectors[row] for row in rows])

    def _embed(self, rows: Sequence[Ids]) -> Floats:
        ids = [torch.tensor(row) for row in rows]
        mask = _padded([torch.ones_like(row) for row in ids])  # (rows, tokens)
        with torch.inference_mode():
            hidden = self._model(input_ids=_padded(ids), attention_mask=mask).last_hidden_state
        means = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)  # (rows, hidden)
        vectors: Floats = torch.nn.functional.normalize(means, dim=1).double().numpy()
        return vectors


def _padded(rows: list[Tensor]) -> Tensor:
    return pad_sequence(rows, batch_first=True)
