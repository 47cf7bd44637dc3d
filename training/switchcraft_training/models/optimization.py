"""Batches, losses and learning rates, and the device and precision that training uses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from router_service.core.errors import ConfigError
from switchcraft_training.config import Precision, RunConfig
from switchcraft_training.data.table import Table

_DTYPES: dict[Precision, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}


def device() -> torch.device:
    """Return the device that trains: a GPU if there is one."""
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


def precision_of(config: RunConfig) -> Precision:
    """Return the encoder's precision; raises ConfigError for fp16 on a CPU."""
    default: Precision = "fp16" if device().type == "cuda" else "no"  # as in the paper's appendix
    precision = config.training.precision or default
    if precision == "fp16" and device().type == "cpu":
        problem = "fp16 needs a GPU; use bf16, or remove the setting"
        raise ConfigError(config.name, "training.precision", problem)
    return precision


def mixed(precision: Precision) -> torch.autocast:
    """Return a context in which matrix products have this precision; weights stay in FP32."""
    is_mixed = precision != "no"
    return torch.autocast(device().type, _DTYPES.get(precision), enabled=is_mixed)


def cross_entropy(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted mean binary cross-entropy of logits (batch, heads).

    A label may be the share of an arm's attempts that were correct. The weight of an unknown label
    must be 0.
    """
    losses = functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")
    return (losses * weights).sum() / weights.sum().clamp(min=1e-9)


def head_weights(heads: int, arms: int, auxiliary_weight: float) -> Tensor:
    """Return the weights of the heads: 1 for each arm, and a share for the auxiliary heads.

    All auxiliary heads together weigh `auxiliary_weight` times as much as all arms.
    """
    weights = torch.ones(heads)
    if heads > arms:
        weights[arms:] = auxiliary_weight * arms / (heads - arms)
    return weights


def linear_schedule(
    optimizer: torch.optim.Optimizer, steps: int, warmup_ratio: float
) -> torch.optim.lr_scheduler.LambdaLR:
    """Return a schedule whose factor rises to 1 during warm-up, then falls to 0 at `steps`."""
    warmup = max(1, round(steps * warmup_ratio))

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        return max(0.0, (steps - step) / max(1, steps - warmup))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread in the block: in small networks, threads would wait minutes for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


WIDTH_STEP = 16
"""Batches are padded to multiples of this width.

The CPU's kernels cache an execution plan for every width. With all widths from 20 to 280, the plans
of one run took 5 GB.
"""

EVALUATION_BATCH = 64
"""Rows of one batch when a model is evaluated."""

BUCKET_BATCHES = 8
"""Rows are shuffled, then sorted by length within this many batches; this saves 40% of padding."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Tensors of one step: ids and mask (batch, tokens), features, labels, mask of known labels."""

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
    if longest == 1:  # Pooled states, (1, hidden), need no padding.
        return torch.stack(list(rows)), torch.ones(len(rows), 1, dtype=torch.long)
    width = -(-longest // WIDTH_STEP) * WIDTH_STEP
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
    for bucket in chunks(order, batch_size * BUCKET_BATCHES):
        by_length = bucket[np.argsort(lengths[bucket], kind="stable")]
        batches.extend(chunks(by_length, batch_size))
    for i in rng.permutation(len(batches)):
        yield batches[i]


def batches_in_order(rows: Table, pad_id: int) -> Iterator[Batch]:
    """Yield the rows as batches, in the order of the table, for evaluation."""
    for chunk in chunks(np.arange(len(rows.packed)), EVALUATION_BATCH):
        yield collate(rows.take(chunk.tolist()), pad_id)


def chunks(indices: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    """Return indices in parts of this size; the last part may be smaller."""
    return [indices[start : start + size] for start in range(0, len(indices), size)]
