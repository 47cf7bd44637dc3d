"""Fine-tuning of the encoder (paper, appendix on training configuration)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from numpy.typing import NDArray
from torch import Tensor, nn

from switchcraft_training.config import RunConfig, TrainingConfig
from switchcraft_training.data.table import Table
from switchcraft_training.evaluation.metrics import macro_f1, micro_f1
from switchcraft_training.models.checkpoints import (
    Checkpoints,
    Epoch,
    RunState,
    best_epoch,
    fingerprint,
    is_finished,
    mean_loss,
)
from switchcraft_training.models.encoders import PretrainedEncoder
from switchcraft_training.models.frozen import freeze, row_inputs
from switchcraft_training.models.model import EncoderBranch
from switchcraft_training.models.optimization import (
    chunks,
    gather_strided,
    head_weights,
    known_labels,
    linear_schedule,
    padded,
    shuffled_batches,
    start_accelerator,
    summed_cross_entropy,
)
from switchcraft_training.progress import Bar

MAX_GRADIENT_NORM = 1.0


@dataclass(frozen=True, slots=True)
class FineTuned:
    """The branch of the best epoch, in evaluation mode on its device, and the epochs of the run."""

    branch: EncoderBranch
    epochs: tuple[Epoch, ...]
    best: Epoch


@dataclass(frozen=True, slots=True)
class Inputs:
    """Inputs (tokens, ...) of the trained part for each row, and the labels (n, heads).

    The trained part is the encoder's layers above the frozen ones, with the head.
    """

    rows: list[Tensor]
    labels: NDArray[np.float32]
    pad_id: int

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Return the number of tokens of each row, (n,)."""
        return np.array([len(row) for row in self.rows], dtype=np.int64)

    def batch(self, indices: NDArray[np.int64], device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the padded rows and their mask, on `device`."""
        stacked, mask = padded([self.rows[i] for i in indices], self.pad_id)
        return stacked.to(device), mask.to(device)


@dataclass(frozen=True, slots=True)
class Task:
    """A module to train, with its data and settings."""

    module: nn.Module
    train: Inputs
    validation: Inputs
    arms: int
    settings: TrainingConfig


def finetune_encoder(
    encoder: PretrainedEncoder,
    config: RunConfig,
    train: Table,
    validation: Table,
    *,
    workspace: Path | None = None,
) -> FineTuned:
    """Fine-tune `encoder` in place, with a new linear head, and return the best epoch's branch.

    `workspace` contains checkpoints, from which an interrupted run resumes, and the states of
    frozen layers. Every process of `accelerate launch` makes this call with the same arguments;
    the batch size is per process. The first `len(config.arms)` columns of labels belong to the
    pool's arms, all further columns are auxiliary. Raises ConfigError if the device does not
    support the precision, or if the encoder cannot be split at the frozen layers.
    """
    accelerator = start_accelerator(config)
    identity = fingerprint(accelerator, encoder.model, config, (train, validation))
    checkpoints = Checkpoints(workspace, accelerator, identity)
    torch.manual_seed(config.seed)
    branch = build_branch(encoder, config, train.labels).to(accelerator.device)
    state = RunState(config.seed)
    trained = freeze(branch, config.encoder.frozen_layers)
    if not checkpoints.load_finished(state):
        ids = [row.token_ids for part in (train, validation) for row in part.packed]
        with accelerator.main_process_first():
            cache = _state_cache(workspace)
            inputs = row_inputs(branch, config.encoder.frozen_layers, ids, cache)
        first = len(train.packed)
        task = Task(
            trained,
            train=Inputs(inputs[:first], train.labels, branch.pad_id),
            validation=Inputs(inputs[first:], validation.labels, branch.pad_id),
            arms=len(config.arms),
            settings=config.training,
        )
        _fit(task, state, accelerator, checkpoints)
        checkpoints.finish(state)
    trained.load_state_dict(state.best_state)
    best = best_epoch(state.epochs, config.training)
    return FineTuned(branch.eval(), tuple(state.epochs), best)


def build_branch(
    encoder: PretrainedEncoder, config: RunConfig, labels: NDArray[np.float32]
) -> EncoderBranch:
    """Return an encoder with a new head whose biases are the log-odds of the training labels."""
    heads = labels.shape[1]
    pooling, dropout = config.encoder.pooling, config.training.dropout
    branch = EncoderBranch(encoder.model, heads, pooling=pooling, dropout=dropout)
    values, known = known_labels(labels)
    rates = (values.sum(0) + 0.5) / (known.sum(0) + 1)  # Without any label, the rate is a half.
    with torch.no_grad():
        branch.head.bias.copy_(torch.logit(rates.clamp(0.02, 0.98)))
    return branch


def encoder_logits(
    branch: EncoderBranch, config: RunConfig, rows: Table, workspace: Path | None = None
) -> Tensor:
    """Return a fine-tuned branch's logits (n, heads) for rows, computed on the branch's device.

    Call this under `torch.no_grad()`. The states of frozen layers are cached in `workspace`.
    """
    frozen = config.encoder.frozen_layers
    ids = [row.token_ids for row in rows.packed]
    inputs = Inputs(
        row_inputs(branch, frozen, ids, _state_cache(workspace)), rows.labels, branch.pad_id
    )
    module = freeze(branch, frozen).eval()
    order = np.argsort(inputs.lengths, kind="stable")
    device = branch.head.weight.device
    parts = [
        module(*inputs.batch(some, device)).cpu()
        for some in chunks(order, config.training.evaluation_batch_size)
    ]
    return torch.cat(parts)[np.argsort(order)]


def compute_states(
    encoder: PretrainedEncoder, config: RunConfig, rows: Table, workspace: Path
) -> None:
    """Write the states of frozen layers for rows to `workspace`, so that later calls read them."""
    frozen = config.encoder.frozen_layers
    branch = build_branch(encoder, config, rows.labels).to(start_accelerator(config).device)
    freeze(branch, frozen)  # Checks that the encoder can be split at this layer.
    row_inputs(branch, frozen, [row.token_ids for row in rows.packed], _state_cache(workspace))


def _state_cache(workspace: Path | None) -> Path | None:
    return None if workspace is None else workspace / "frozen"


def _fit(task: Task, state: RunState, accelerator: Accelerator, checkpoints: Checkpoints) -> None:
    """Train until all epochs are done or early stopping applies."""
    stepper = Stepper(task, accelerator)
    accelerator.register_for_checkpointing(stepper.schedule, state)
    checkpoints.resume()
    is_hidden = not accelerator.is_main_process
    with Bar("fine-tuning", stepper.steps, "steps", is_hidden=is_hidden) as progress:
        progress.update(stepper.epoch_steps * len(state.epochs))
        while not is_finished(state.epochs, task.settings):
            losses = []
            for joint in shuffled_batches(task.train.lengths, stepper.joint_rows, state.rng):
                losses.append(stepper.step(joint))
                progress.update()
            train_loss = accelerator.reduce(torch.stack(losses).mean(), reduction="mean")
            loss = macro = micro = float("nan")
            if task.validation.rows:
                probabilities = _probabilities(task, accelerator)[:, : task.arms]
                labels = task.validation.labels[:, : task.arms]
                loss = mean_loss(labels, probabilities)
                macro, micro = macro_f1(labels, probabilities), micro_f1(labels, probabilities)
            epoch = Epoch(len(state.epochs) + 1, float(train_loss), loss, macro, micro)
            state.epochs.append(epoch)
            if best_epoch(state.epochs, task.settings) is epoch:
                state.keep_best(task.module)
            if math.isnan(epoch.loss):  # There are no validation rows.
                progress.show(train_loss=epoch.train_loss)
            else:
                progress.show(loss=epoch.loss, macro_f1=epoch.macro_f1)
            checkpoints.save(epoch.number)
    stepper.release()


class Stepper:
    """Training steps with AdamW and linear decay of the learning rate.

    A joint batch has the rows of all processes; each process computes its share of them.
    """

    def __init__(self, task: Task, accelerator: Accelerator) -> None:
        """Prepare the module on the device, and seed dropout differently in each process."""
        settings = task.settings
        self.joint_rows = settings.batch_size * accelerator.num_processes
        self.epoch_steps = math.ceil(len(task.train.rows) / self.joint_rows)
        self.steps = self.epoch_steps * settings.max_epochs
        optimizer = _optimizer(task.module, settings)
        self.schedule = linear_schedule(optimizer, self.steps, settings.warmup_ratio)
        self._module, self._optimizer = accelerator.prepare(task.module, optimizer)
        self._task, self._accelerator = task, accelerator
        torch.manual_seed(torch.initial_seed() + accelerator.process_index)

    def step(self, joint: NDArray[np.int64]) -> Tensor:
        """Learn from a joint batch, which must be the same in all processes; return the loss."""
        loss = self._loss(joint)
        self._optimizer.zero_grad()
        self._accelerator.backward(loss)
        self._accelerator.clip_grad_norm_(self._module.parameters(), MAX_GRADIENT_NORM)
        self._optimizer.step()
        if not self._accelerator.optimizer_step_was_skipped:  # In fp16, gradients may overflow.
            self.schedule.step()
        return loss.detach()

    def release(self) -> None:
        """Remove the wrappers for mixed precision from the module."""
        self._accelerator.unwrap_model(self._module, keep_fp32_wrapper=False)

    def _loss(self, joint: NDArray[np.int64]) -> Tensor:
        """Return this process's part of the loss of a joint batch.

        Gradients are averaged over processes, so each part is multiplied by the number of
        processes. The average is then the gradient of the joint batch's mean loss, even if the
        processes have different numbers of known labels.
        """
        task, accelerator = self._task, self._accelerator
        self._module.train()
        own = joint[accelerator.process_index :: accelerator.num_processes]
        rows = own if len(own) else joint[:1]  # The last batch may have fewer rows than processes.
        labels, known = known_labels(task.train.labels[rows])
        heads = head_weights(labels.shape[1], task.arms, task.settings.auxiliary_weight)
        weights = (known * heads * float(len(own) > 0)).to(accelerator.device)
        total = accelerator.reduce(weights.sum(), reduction="sum").clamp(min=1e-9)
        logits = self._module(*task.train.batch(rows, accelerator.device))
        summed = summed_cross_entropy(logits, labels.to(accelerator.device), weights)
        loss: Tensor = summed * accelerator.num_processes / total
        return loss


def _optimizer(module: nn.Module, settings: TrainingConfig) -> torch.optim.Optimizer:
    """Return AdamW for the parameters that are not frozen.

    The head may have its own learning rate.
    """
    named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    groups = [
        {
            "params": [p for name, p in named if not name.startswith("head.")],
            "lr": settings.learning_rate,
        },
        {
            "params": [p for name, p in named if name.startswith("head.")],
            "lr": settings.head_learning_rate or settings.learning_rate,
        },
    ]
    return torch.optim.AdamW(groups, weight_decay=settings.weight_decay)


def _probabilities(task: Task, accelerator: Accelerator) -> NDArray[np.float64]:
    """Return probabilities (n, heads) of the validation rows; each process computes its share."""
    task.module.eval()
    inputs = task.validation
    order = np.argsort(inputs.lengths, kind="stable")
    processes = accelerator.num_processes
    # Some rows are repeated, so that all processes have the same number of rows.
    full = np.resize(order, -(-len(order) // processes) * processes)
    own = full[accelerator.process_index :: processes]
    with torch.no_grad():
        parts = [
            task.module(*inputs.batch(rows, accelerator.device))
            for rows in chunks(own, task.settings.evaluation_batch_size)
        ]
    logits = gather_strided(accelerator, torch.cat(parts))[: len(order)]
    result = np.empty(tuple(logits.shape))
    result[order] = torch.sigmoid(logits.float()).double().cpu().numpy()
    return result
