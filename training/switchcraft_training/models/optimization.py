"""Batches, losses and learning rates, and the processes and precision that training uses.

`accelerate launch -m switchcraft_training.cli run ...` starts one process per device. Each process
reads all rows and computes its share of every batch. Only the main process writes files.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import numpy as np
import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import parse_flag_from_env
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from router_service.core.errors import ConfigError
from switchcraft_training.config import RunConfig
from switchcraft_training.data.table import Table

WAIT: Final = timedelta(hours=4)
"""How long a process waits for the others.

Between trainings, only the main process predicts held-out rows, which takes minutes to hours. The
defaults of the backends, 10 and 30 minutes, would end such a run.
"""


def start_accelerator(config: RunConfig) -> Accelerator:
    """Return the accelerator of this process, in the configured precision.

    Raises ConfigError for fp16 on a CPU.
    """
    device = _state().device.type
    default = "fp16" if device == "cuda" else "no"  # as in the paper's appendix on training
    precision = config.training.precision or default
    if precision == "fp16" and device == "cpu":
        problem = "fp16 needs a GPU; use bf16, or remove the setting"
        raise ConfigError(config.name, "training.precision", problem)
    logging.getLogger("accelerate").setLevel(logging.WARNING)  # It logs every file that it writes.
    return Accelerator(mixed_precision=precision)


def device() -> torch.device:
    """Return the device that this process trains on."""
    return torch.device(_state().device)


def is_main_process() -> bool:
    """Return whether this process writes files; a single process always does."""
    return bool(_state().is_main_process)


@contextmanager
def main_process_first() -> Iterator[None]:
    """Run the block in the main process first, so that other processes find the files it writes."""
    with _state().main_process_first():
        yield


def process_count() -> int:
    """Return the number of processes that were launched together."""
    return int(_state().num_processes)


def _state() -> PartialState:
    # Read the flag of `accelerate launch --cpu` here: the Accelerator would read it too late. The
    # first call starts the process group, whose timeout cannot be changed later.
    return PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU"), timeout=WAIT)


def gather_strided(accelerator: Accelerator, own: Tensor) -> Tensor:
    """Return the results of all P processes, in the order of the rows.

    `own` has the results of process p for rows p, p + P, ... Every process must have the same
    number of rows.
    """
    gathered: Tensor = accelerator.gather(own)
    by_process = gathered.view(accelerator.num_processes, *own.shape)  # (P, rows, ...)
    return torch.flatten(by_process.transpose(0, 1), 0, 1)  # (rows * P, ...)


def cross_entropy(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted mean binary cross-entropy of logits (batch, heads).

    A label may be the share of an arm's attempts that were correct. The weight of an unknown label
    must be 0.
    """
    return summed_cross_entropy(logits, labels, weights) / weights.sum().clamp(min=1e-9)


def summed_cross_entropy(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted sum of the binary cross-entropies of logits (batch, heads)."""
    losses = functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")
    return (losses * weights).sum()


def head_weights(heads: int, arms: int, auxiliary_weight: float) -> Tensor:
    """Return the weights of the heads: 1 for each arm, and a share for the auxiliary heads.

    All auxiliary heads together weigh `auxiliary_weight` times as much as all arms.
    """
    weights = torch.ones(heads)
    if heads > arms:
        weights[arms:] = auxiliary_weight * arms / (heads - arms)
    return weights


def linear_decay(step: int, steps: int, warmup_ratio: float) -> float:
    """Return the factor of the learning rate: it rises to 1 during warm-up, then falls to 0."""
    warmup = max(1, round(steps * warmup_ratio))
    if step < warmup:
        return (step + 1) / warmup
    return max(0.0, (steps - step) / max(1, steps - warmup))


def linear_schedule(
    optimizer: torch.optim.Optimizer, steps: int, warmup_ratio: float
) -> torch.optim.lr_scheduler.LambdaLR:
    """Return a schedule over `steps` steps: warm-up, then linear decay."""
    return torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: linear_decay(step, steps, warmup_ratio)
    )


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


def batches_in_order(rows: Table, batch_size: int, pad_id: int = 0) -> Iterator[Batch]:
    """Yield the rows as batches, in the order of the table, for evaluation."""
    for chunk in chunks(np.arange(len(rows.packed)), batch_size):
        yield collate(rows.take(chunk.tolist()), pad_id)


def chunks(indices: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    """Return indices in parts of this size; the last part may be smaller."""
    return [indices[start : start + size] for start in range(0, len(indices), size)]
