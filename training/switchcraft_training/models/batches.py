"""Padded batches of packed rows, grouped by similar length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from switchcraft_training.data.table import Table

WIDTH_STEP = 16
"""Batches are padded to multiples of this width. The CPU's kernels keep a plan for every width.
With all widths from 20 to 280, the plans of one run took 5 GB."""

BUCKET_BATCHES = 8
"""Table are shuffled, then sorted by length within this many batches; this saves 40% of padding."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Tensors of one step: ids and mask (batch, tokens), features, labels and their mask."""

    input_ids: Tensor
    attention_mask: Tensor
    features: Tensor
    labels: Tensor
    known: Tensor


def collate(rows: Table, pad_id: int = 0) -> Batch:
    """Return a padded batch; unknown labels become 0 with a mask of 0."""
    ids, mask = padded([torch.tensor(row.token_ids) for row in rows.packed], pad_id)
    return Batch(ids, mask, feature_tensor(rows), *known_labels(rows.labels))


def padded(rows: Sequence[Tensor], value: float) -> tuple[Tensor, Tensor]:
    """Stack rows (tokens, ...) to (rows, width, ...); return them and their mask (rows, width)."""
    longest = max(len(row) for row in rows)
    # Pooled states are sequences of length 1 and need no padding.
    width = 1 if longest == 1 else -(-longest // WIDTH_STEP) * WIDTH_STEP
    stacked = rows[0].new_full((len(rows), width, *rows[0].shape[1:]), value)
    mask = torch.zeros(len(rows), width, dtype=torch.long)
    for i, row in enumerate(rows):
        stacked[i, : len(row)] = row
        mask[i, : len(row)] = 1
    return stacked, mask


def known_labels(labels: NDArray[np.float32]) -> tuple[Tensor, Tensor]:
    """Return labels with 0 for unknown ones, and a mask that is 1 for known ones."""
    tensor = torch.from_numpy(labels)
    return tensor.nan_to_num(0.0), (~torch.isnan(tensor)).float()


def feature_tensor(rows: Table) -> Tensor:
    """Return the rows' structural features, (n, features)."""
    return torch.tensor([row.features for row in rows.packed], dtype=torch.float32)


def shuffled_batches(
    lengths: NDArray[np.int64], batch_size: int, rng: np.random.Generator
) -> Iterator[NDArray[np.int64]]:
    """Yield the row indices of one epoch's batches, in random order.

    The rows of a batch have similar lengths.
    """
    order = rng.permutation(len(lengths))
    batches: list[NDArray[np.int64]] = []
    for bucket in _chunks(order, batch_size * BUCKET_BATCHES):
        by_length = bucket[np.argsort(lengths[bucket], kind="stable")]
        batches.extend(_chunks(by_length, batch_size))
    for i in rng.permutation(len(batches)):
        yield batches[i]


def batches_in_order(rows: Table, batch_size: int, pad_id: int = 0) -> Iterator[Batch]:
    """Yield batches of the rows in their own order, for evaluation."""
    for chunk in _chunks(np.arange(len(rows.packed)), batch_size):
        yield collate(rows.take(chunk.tolist()), pad_id)


def _chunks(indices: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    return [indices[start : start + size] for start in range(0, len(indices), size)]
