"""Fine-tuning of the encoder (paper, appendix on training configuration)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from switchcraft_training.config import Precision, RunConfig, TrainingConfig
from switchcraft_training.data.table import Table
from switchcraft_training.evaluation.metrics import macro_f1, micro_f1
from switchcraft_training.models.checkpoints import (
    Checkpoints,
    Epoch,
    RunState,
    Stateful,
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
    cross_entropy,
    device,
    head_weights,
    known_labels,
    linear_schedule,
    mixed,
    padded,
    precision_of,
    shuffled_batches,
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
    precision: Precision


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
    frozen layers. The first `len(config.arms)` columns of labels belong to the pool's arms, all
    further columns are auxiliary. Raises ConfigError if the device does not support the precision,
    or if the encoder cannot be split at the frozen layers.
    """
    precision = precision_of(config)
    checkpoints = Checkpoints(workspace, fingerprint(encoder.model, config, (train, validation)))
    torch.manual_seed(config.seed)
    branch = build_branch(encoder, config, train.labels).to(device())
    state = RunState(np.random.default_rng(config.seed))
    trained = freeze(branch, config.encoder.frozen_layers)
    if not checkpoints.load_finished(state):
        ids = [row.token_ids for part in (train, validation) for row in part.packed]
        inputs = row_inputs(branch, config.encoder.frozen_layers, ids, _state_cache(workspace))
        first = len(train.packed)
        task = Task(
            trained,
            train=Inputs(inputs[:first], train.labels, branch.pad_id),
            validation=Inputs(inputs[first:], validation.labels, branch.pad_id),
            arms=len(config.arms),
            settings=config.training,
            precision=precision,
        )
        _fit(task, state, checkpoints)
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
    return _logits(freeze(branch, frozen), inputs, config.training.evaluation_batch_size)


def _logits(module: nn.Module, inputs: Inputs, batch_size: int) -> Tensor:
    """Return a module's logits (n, heads) in full precision, in the order of the inputs."""
    where = next(module.parameters()).device
    order = np.argsort(inputs.lengths, kind="stable")
    module.eval()
    parts = [module(*inputs.batch(some, where)).float().cpu() for some in chunks(order, batch_size)]
    return torch.cat(parts)[np.argsort(order)]


def compute_states(
    encoder: PretrainedEncoder, config: RunConfig, rows: Table, workspace: Path
) -> None:
    """Write the states of frozen layers for rows to `workspace`, so that later calls read them."""
    frozen = config.encoder.frozen_layers
    branch = build_branch(encoder, config, rows.labels).to(device())
    freeze(branch, frozen)  # Checks that the encoder can be split at this layer.
    row_inputs(branch, frozen, [row.token_ids for row in rows.packed], _state_cache(workspace))


def _state_cache(workspace: Path | None) -> Path | None:
    return None if workspace is None else workspace / "frozen"


def _fit(task: Task, state: RunState, checkpoints: Checkpoints) -> None:
    """Train until all epochs are done or early stopping applies."""
    stepper, settings = Stepper(task), task.settings
    parts = {**stepper.parts, "run": state}
    checkpoints.resume(parts)
    with Bar("fine-tuning", stepper.steps, "steps") as progress:
        progress.update(stepper.epoch_steps * len(state.epochs))
        while not is_finished(state.epochs, settings):
            losses = []
            for rows in shuffled_batches(task.train.lengths, settings.batch_size, state.rng):
                losses.append(stepper.step(rows))
                progress.update()
            train_loss = float(torch.stack(losses).mean())
            loss = macro = micro = float("nan")
            if task.validation.rows:
                with torch.no_grad(), mixed(task.precision):
                    logits = _logits(task.module, task.validation, settings.evaluation_batch_size)
                probabilities = torch.sigmoid(logits).double().numpy()[:, : task.arms]
                labels = task.validation.labels[:, : task.arms]
                loss = mean_loss(labels, probabilities)
                macro, micro = macro_f1(labels, probabilities), micro_f1(labels, probabilities)
            epoch = Epoch(len(state.epochs) + 1, train_loss, loss, macro, micro)
            state.epochs.append(epoch)
            if best_epoch(state.epochs, settings) is epoch:
                state.keep_best(task.module)
            if math.isnan(epoch.loss):  # There are no validation rows.
                progress.show(f"train_loss={epoch.train_loss:.3g}")
            else:
                progress.show(f"loss={epoch.loss:.3g}, macro_f1={epoch.macro_f1:.3g}")
            checkpoints.save(epoch.number, parts)


class Stepper:
    """Training steps with AdamW and linear decay of the learning rate.

    `parts` have the state that an interrupted run needs, by name.
    """

    def __init__(self, task: Task) -> None:
        """Prepare the optimizer, and seed the dropout."""
        settings = task.settings
        self.epoch_steps = math.ceil(len(task.train.rows) / settings.batch_size)
        self.steps = self.epoch_steps * settings.max_epochs
        self._task, self._device = task, next(task.module.parameters()).device
        learning = [p for p in task.module.parameters() if p.requires_grad]
        self._optimizer = torch.optim.AdamW(
            learning, lr=settings.learning_rate, weight_decay=settings.weight_decay
        )
        self._schedule = linear_schedule(self._optimizer, self.steps, settings.warmup_ratio)
        # In fp16, small gradients would be 0 without a factor.
        self._scaler = torch.amp.GradScaler(self._device.type, enabled=task.precision == "fp16")
        self.parts: dict[str, Stateful] = {
            "module": task.module,
            "optimizer": self._optimizer,
            "schedule": self._schedule,
            "scaler": self._scaler,
        }
        torch.manual_seed(torch.initial_seed())

    def step(self, rows: NDArray[np.int64]) -> Tensor:
        """Learn from a batch of training rows, and return the loss."""
        task = self._task
        task.module.train()
        labels, known = known_labels(task.train.labels[rows])
        heads = head_weights(labels.shape[1], task.arms, task.settings.auxiliary_weight)
        with mixed(task.precision):
            logits = task.module(*task.train.batch(rows, self._device)).float()
        weights = (known * heads).to(self._device)
        loss = cross_entropy(logits, labels.to(self._device), weights)
        self._optimizer.zero_grad()
        self._scaler.scale(loss).backward()
        self._scaler.unscale_(self._optimizer)
        nn.utils.clip_grad_norm_(task.module.parameters(), MAX_GRADIENT_NORM)
        factor = self._scaler.get_scale()
        self._scaler.step(self._optimizer)
        self._scaler.update()
        if self._scaler.get_scale() >= factor:  # Otherwise, gradients overflowed: no step.
            self._schedule.step()
        return loss.detach()
