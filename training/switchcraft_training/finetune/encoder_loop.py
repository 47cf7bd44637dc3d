"""Fine-tuning of the encoder (paper, appendix on training configuration)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from numpy.typing import NDArray
from torch import Tensor, nn
from tqdm import tqdm

from switchcraft_training.config import RunConfig, TrainingConfig
from switchcraft_training.finetune import acceleration
from switchcraft_training.finetune.batches import Rows, known_labels, padded, shuffled_batches
from switchcraft_training.finetune.checkpoints import Checkpoints, Course, fingerprint
from switchcraft_training.finetune.encoders import PretrainedEncoder
from switchcraft_training.finetune.epochs import Epoch, best_epoch, is_over, macro_f1, mean_loss
from switchcraft_training.finetune.frozen import freeze, row_inputs
from switchcraft_training.finetune.model import EncoderBranch
from switchcraft_training.finetune.objective import head_weights, scheduled, summed_cross_entropy

MAX_GRADIENT_NORM = 1.0


@dataclass(frozen=True, slots=True)
class FineTuned:
    """The branch of the best epoch, on the CPU and in inference, and the course of the run."""

    branch: EncoderBranch
    epochs: tuple[Epoch, ...]
    best: Epoch


@dataclass(frozen=True, slots=True)
class Inputs:
    """What the trained part reads of each row, (tokens, ...), with the labels (n, heads)."""

    rows: list[Tensor]
    labels: NDArray[np.float32]
    pad_id: int

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each row, (n,)."""
        return np.array([len(row) for row in self.rows], dtype=np.int64)

    def batch(self, indices: NDArray[np.int64], device: torch.device) -> tuple[Tensor, Tensor]:
        """Return some rows padded, and their mask, on a device."""
        stacked, mask = padded([self.rows[i] for i in indices], self.pad_id)
        return stacked.to(device), mask.to(device)


@dataclass(frozen=True, slots=True)
class Task:
    """What is trained, on what, and how."""

    module: nn.Module
    train: Inputs
    validation: Inputs
    arms: int
    settings: TrainingConfig


def finetune_encoder(
    encoder: PretrainedEncoder,
    config: RunConfig,
    train: Rows,
    validation: Rows,
    *,
    workspace: Path | None = None,
) -> FineTuned:
    """Fine-tune `encoder`, which is taken over, with a linear head on it.

    Below `workspace` lie checkpoints, from which a run that was killed goes on, and the states of
    frozen layers. Every process of `accelerate launch` calls it with the same arguments; batch
    sizes are of each. The first `len(config.arms)` labels are the pool's, the rest auxiliary.
    Raises ConfigError where precision or frozen layers do not fit the device or the encoder.
    """
    accelerator = acceleration.start(config)
    identity = fingerprint(accelerator, encoder.model, config, (train, validation))
    checkpoints = Checkpoints(workspace, accelerator, identity)
    torch.manual_seed(config.seed)
    branch = build_branch(encoder, config, train.labels).to(accelerator.device)
    course = Course(config.seed)
    trained = freeze(branch, config.encoder.frozen_layers)
    if not checkpoints.finished(course):
        with accelerator.main_process_first():
            parts = _inputs(branch, config, (train, validation), workspace)
        task = Task(trained, *parts, len(config.arms), config.training)
        _fit(task, course, accelerator, checkpoints)
        checkpoints.finish(course)
    trained.load_state_dict(course.best_state)
    best = best_epoch(course.epochs, config.training)
    return FineTuned(branch.cpu().eval(), tuple(course.epochs), best)


def build_branch(
    encoder: PretrainedEncoder, config: RunConfig, labels: NDArray[np.float32]
) -> EncoderBranch:
    """Put a fresh head on an encoder; its biases start at the training labels' log-odds."""
    heads = labels.shape[1]
    pooling, dropout = config.encoder.pooling, config.training.dropout
    branch = EncoderBranch(encoder.model, heads, pooling=pooling, dropout=dropout)
    values, known = known_labels(labels)
    rates = (values.sum(0) + 0.5) / (known.sum(0) + 1)  # of no label at all: a half
    with torch.no_grad():
        branch.head.bias.copy_(torch.logit(rates.clamp(0.02, 0.98)))
    return branch


def _inputs(
    branch: EncoderBranch, config: RunConfig, parts: tuple[Rows, Rows], workspace: Path | None
) -> tuple[Inputs, Inputs]:
    ids = [row.token_ids for part in parts for row in part.packed]
    rows = row_inputs(branch, config.encoder.frozen_layers, ids, _frozen_cache(workspace))
    train, validation = parts
    first = len(train.packed)
    return (
        Inputs(rows[:first], train.labels, branch.pad_id),
        Inputs(rows[first:], validation.labels, branch.pad_id),
    )


def encoder_logits(
    branch: EncoderBranch, config: RunConfig, rows: Rows, workspace: Path | None = None
) -> Tensor:
    """Return a fine-tuned branch's logits (n, heads); call it without gradients.

    What its frozen layers say is looked for below `workspace`.
    """
    frozen = config.encoder.frozen_layers
    ids = [row.token_ids for row in rows.packed]
    inputs = Inputs(
        row_inputs(branch, frozen, ids, _frozen_cache(workspace)), rows.labels, branch.pad_id
    )
    module = freeze(branch, frozen).eval()
    order = np.argsort(inputs.lengths, kind="stable")
    device = branch.head.weight.device
    parts = [
        module(*inputs.batch(some, device))
        for some in _slices(order, config.training.evaluation_batch_size)
    ]
    return torch.cat(parts)[np.argsort(order)]


def _frozen_cache(workspace: Path | None) -> Path | None:
    return None if workspace is None else workspace / "frozen"


def _fit(task: Task, course: Course, accelerator: Accelerator, checkpoints: Checkpoints) -> None:
    """Train epoch after epoch, until all are done or the patience is at its end."""
    stepper = Stepper(task, accelerator)
    accelerator.register_for_checkpointing(stepper.schedule, course)
    checkpoints.resume()
    with _progress(accelerator, stepper.steps) as progress:
        progress.update(stepper.epoch_steps * len(course.epochs))
        while not is_over(course.epochs, task.settings):
            losses = []
            for joint in shuffled_batches(task.train.lengths, stepper.joint_rows, course.rng):
                losses.append(stepper.step(joint))
                progress.update()
            train_loss = accelerator.reduce(torch.stack(losses).mean(), reduction="mean")
            epoch = _measured(task, len(course.epochs) + 1, float(train_loss), accelerator)
            course.epochs.append(epoch)
            if best_epoch(course.epochs, task.settings) is epoch:
                course.keep(task.module)
            progress.set_postfix(_shown(epoch))
            checkpoints.save(epoch.number)
    stepper.release()


def _shown(epoch: Epoch) -> dict[str, float]:
    """Return what the progress bar tells: the measured loss, or the training's where none is."""
    if math.isnan(epoch.loss):
        return {"train_loss": epoch.train_loss}
    return {"loss": epoch.loss, "macro_f1": epoch.macro_f1}


class Stepper:
    """Steps of AdamW with linear decay, each process with its share of a joint batch."""

    def __init__(self, task: Task, accelerator: Accelerator) -> None:
        """Make ready on the device; each process will drop out other states than the others."""
        settings = task.settings
        self.joint_rows = settings.batch_size * accelerator.num_processes
        self.epoch_steps = math.ceil(len(task.train.rows) / self.joint_rows)
        self.steps = self.epoch_steps * settings.max_epochs
        plain = _optimizer(task.module, settings)
        self.schedule = scheduled(plain, self.steps, settings.warmup_ratio)
        self._module, self._optimizer = accelerator.prepare(task.module, plain)
        self._task, self._accelerator = task, accelerator
        torch.manual_seed(torch.initial_seed() + accelerator.process_index)

    def step(self, joint: NDArray[np.int64]) -> Tensor:
        """Learn from some rows, of which all processes are told the same; return the loss."""
        loss = self._loss(joint)
        self._optimizer.zero_grad()
        self._accelerator.backward(loss)
        self._accelerator.clip_grad_norm_(self._module.parameters(), MAX_GRADIENT_NORM)
        self._optimizer.step()
        if not self._accelerator.optimizer_step_was_skipped:  # fp16 overflowed
            self.schedule.step()
        return loss.detach()

    def release(self) -> None:
        """Leave the module as it was given, without mixed precision."""
        self._accelerator.unwrap_model(self._module, keep_fp32_wrapper=False)

    def _loss(self, joint: NDArray[np.int64]) -> Tensor:
        """Return this process's part of the loss of a joint batch.

        Gradients are averaged over processes, so each part is scaled by their number: the average
        is then the gradient of the joint batch's mean, however its known labels are spread.
        """
        task, accelerator = self._task, self._accelerator
        self._module.train()
        own = joint[accelerator.process_index :: accelerator.num_processes]
        rows = own if len(own) else joint[:1]  # a last batch of fewer rows than processes
        labels, known = known_labels(task.train.labels[rows])
        heads = head_weights(labels.shape[1], task.arms, task.settings.auxiliary_weight)
        weights = (known * heads * float(len(own) > 0)).to(accelerator.device)
        total = accelerator.reduce(weights.sum(), reduction="sum").clamp(min=1e-9)
        logits = self._module(*task.train.batch(rows, accelerator.device))
        summed = summed_cross_entropy(logits, labels.to(accelerator.device), weights)
        loss: Tensor = summed * accelerator.num_processes / total
        return loss


def _optimizer(module: nn.Module, settings: TrainingConfig) -> torch.optim.Optimizer:
    """Return AdamW over what is not frozen; the head may have a rate of its own."""
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


def _progress(accelerator: Accelerator, steps: int) -> tqdm[None]:
    return tqdm(
        total=steps, desc="fine-tuning", unit="step", disable=not accelerator.is_main_process
    )


def _measured(task: Task, number: int, train_loss: float, accelerator: Accelerator) -> Epoch:
    """Measure an epoch on the validation rows; without any, nothing is known of it."""
    if not task.validation.rows:
        return Epoch(number, train_loss, float("nan"), float("nan"))
    probabilities = _probabilities(task, accelerator)[:, : task.arms]
    labels = task.validation.labels[:, : task.arms]
    loss, f1 = mean_loss(labels, probabilities), macro_f1(labels, probabilities)
    return Epoch(number, train_loss, loss, f1)


def _probabilities(task: Task, accelerator: Accelerator) -> NDArray[np.float64]:
    """Return probabilities (n, heads) on the validation rows, each process computing its share."""
    task.module.eval()
    inputs = task.validation
    order = np.argsort(inputs.lengths, kind="stable")
    processes = accelerator.num_processes
    # Repeats fill the last round up, so that all processes have as many rows.
    full = np.resize(order, -(-len(order) // processes) * processes)
    own = full[accelerator.process_index :: processes]
    with torch.no_grad():
        parts = [
            task.module(*inputs.batch(rows, accelerator.device))
            for rows in _slices(own, task.settings.evaluation_batch_size)
        ]
    logits = acceleration.gather_strided(accelerator, torch.cat(parts))[: len(order)]
    result = np.empty(tuple(logits.shape))
    result[order] = torch.sigmoid(logits.float()).double().cpu().numpy()
    return result


def _slices(rows: NDArray[np.int64], size: int) -> Iterator[NDArray[np.int64]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
