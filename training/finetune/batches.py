"""Packed rows -> padded batches of like length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from router_service.core.packing import Packed

WIDTH_STEP = 16
"""Batches are padded to multiples of this: every new width costs the CPU's kernels a plan, and
with all widths from 20 to 280 the plans of one run took 5 GB."""

BUCKET_BATCHES = 8
"""Rows are shuffled, then sorted by length within this many batches: 40% less padding."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Packed conversations with their labels (n, heads), NaN where a label is unknown."""

    packed: tuple[Packed, ...]
    labels: NDArray[np.float32]

    def take(self, indices: Sequence[int]) -> Rows:
        """Return the rows at these indices."""
        return Rows(tuple(self.packed[i] for i in indices), self.labels[list(indices)])


@dataclass(frozen=True, slots=True)
class Batch:
    """Tensors of one step: ids and mask (batch, tokens), features, labels and their mask."""

    input_ids: Tensor
    attention_mask: Tensor
    features: Tensor
    labels: Tensor
    known: Tensor


def collate(rows: Rows) -> Batch:
    """Pad to the longest row or a little more; unknown labels become 0 with a mask of 0."""
    longest = max(len(row.token_ids) for row in rows.packed)
    width = -(-longest // WIDTH_STEP) * WIDTH_STEP
    ids = torch.zeros(len(rows.packed), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows.packed):
        ids[i, : len(row.token_ids)] = torch.tensor(row.token_ids)
        mask[i, : len(row.token_ids)] = 1
    labels = torch.from_numpy(rows.labels)
    known = ~torch.isnan(labels)
    return Batch(ids, mask, feature_tensor(rows), labels.nan_to_num(0.0), known.float())


def feature_tensor(rows: Rows) -> Tensor:
    """Return the rows' structural counts, (n, features)."""
    return torch.tensor([row.features for row in rows.packed], dtype=torch.float32)


def shuffled_batches(rows: Rows, batch_size: int, rng: np.random.Generator) -> Iterator[Batch]:
    """Yield one epoch of training batches in random order, of like length within each."""
    order = rng.permutation(len(rows.packed))
    chunks: list[NDArray[np.int64]] = []
    for bucket in _chunks(order, batch_size * BUCKET_BATCHES):
        chunks.extend(_chunks(_by_length(rows, bucket), batch_size))
    for i in rng.permutation(len(chunks)):
        yield collate(rows.take(chunks[i].tolist()))


def batches_in_order(rows: Rows, batch_size: int) -> Iterator[Batch]:
    """Yield the rows in their own order, for evaluation."""
    for chunk in _chunks(np.arange(len(rows.packed)), batch_size):
        yield collate(rows.take(chunk.tolist()))


def _by_length(rows: Rows, indices: NDArray[np.int64]) -> NDArray[np.int64]:
    lengths = [len(rows.packed[i].token_ids) for i in indices]
    return indices[np.argsort(lengths, kind="stable")]


def _chunks(indices: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    return [indices[start : start + size] for start in range(0, len(indices), size)]
