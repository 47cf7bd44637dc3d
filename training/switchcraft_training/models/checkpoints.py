"""Epochs of a run, and checkpoints from which an interrupted run resumes with the same result."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from switchcraft_training.config import RunConfig, TrainingConfig
from switchcraft_training.data.table import Table
from switchcraft_training.models.frozen import weights_sha256
from switchcraft_training.models.optimization import device, precision_of
from switchcraft_training.storage import complete_file

log = logging.getLogger(__name__)

FINISHED = "finished.safetensors"

END_OF_ROW = -1


@dataclass(frozen=True, slots=True)
class Epoch:
    """Training loss of one pass over the training rows, and metrics on the validation rows."""

    number: int
    train_loss: float
    loss: float
    macro_f1: float
    micro_f1: float


def best_epoch(epochs: Sequence[Epoch], settings: TrainingConfig) -> Epoch:
    """Return the epoch to keep; among equal ones, the earliest."""
    if settings.select_on == "last":
        return epochs[-1]
    if settings.select_on == "loss":
        return min(epochs, key=lambda epoch: (epoch.loss, epoch.number))
    return max(epochs, key=lambda epoch: (epoch.macro_f1, -epoch.number))


def is_finished(epochs: Sequence[Epoch], settings: TrainingConfig) -> bool:
    """Return whether all epochs are done, or the last `patience_epochs` brought no improvement."""
    if not epochs:
        return False
    epochs_waited = epochs[-1].number - best_epoch(epochs, settings).number
    return len(epochs) >= settings.max_epochs or epochs_waited >= settings.patience_epochs


def mean_loss(labels: NDArray[np.float32], probabilities: NDArray[np.float64]) -> float:
    """Return the mean cross-entropy over the known labels (n, heads)."""
    clipped = probabilities.clip(1e-6, 1 - 1e-6)
    losses = -(labels * np.log(clipped) + (1 - labels) * np.log(1 - clipped))
    return float(losses[~np.isnan(labels)].mean())


@dataclass(slots=True)
class RunState:
    """State of a run besides weights, optimizer and schedule: epochs, shuffling, best weights."""

    rng: np.random.Generator
    epochs: list[Epoch] = field(default_factory=list)
    best_state: dict[str, Tensor] = field(default_factory=dict)

    def keep_best(self, module: nn.Module) -> None:
        """Copy the module's weights to `best_state`."""
        state = module.state_dict()
        self.best_state = {name: tensor.detach().cpu().clone() for name, tensor in state.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the state as a checkpoint has it."""
        epochs = [asdict(epoch) for epoch in self.epochs]
        return {"epochs": epochs, "rng": self.rng.bit_generator.state, "best": self.best_state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state from the result of `state_dict`."""
        self.epochs = [Epoch(**epoch) for epoch in state["epochs"]]
        self.rng.bit_generator.state = state["rng"]
        self.best_state = state["best"]


class Stateful(Protocol):
    """What a checkpoint saves and restores."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> object:
        """Restore the state."""
        ...


def fingerprint(encoder: nn.Module, config: RunConfig, rows: tuple[Table, Table]) -> str:
    """Return the SHA-256 of everything that determines the weights of a fine-tuned encoder."""
    settings = {
        "training": config.training.model_dump(mode="json"),
        "encoder": config.encoder.model_dump(mode="json", exclude={"source"}),
        "seed": config.seed,
        "arms": len(config.arms),
        "device": device().type,
        "precision": precision_of(config),
    }
    digest = sha256(json.dumps(settings, sort_keys=True).encode())
    digest.update(weights_sha256(encoder).encode())
    for part in rows:
        for row in part.packed:  # One after the other, because their text would take 0.5 GB.
            digest.update(np.array((*row.token_ids, END_OF_ROW), dtype=np.int32).tobytes())
        digest.update(part.labels.tobytes())
    return digest.hexdigest()


class Checkpoints:
    """Folder of one run in a workspace, with the last epoch's state or the run's final result.

    Without a workspace, nothing is saved.
    """

    def __init__(self, workspace: Path | None, identity: str) -> None:
        self._folder = None if workspace is None else workspace / "checkpoints" / identity

    def load_finished(self, state: RunState) -> bool:
        """Load the result of a finished run, and return whether there was one."""
        if self._folder is None or not (self._folder / FINISHED).exists():
            return False
        with safe_open(self._folder / FINISHED, framework="pt") as file:
            state.best_state = {
                name: file.get_tensor(name)
                for name in file.keys()  # noqa: SIM118 - a file, not a mapping
            }
            state.epochs = [Epoch(**epoch) for epoch in json.loads(file.metadata()["epochs"])]
        log.info("fine-tuning was already finished: weights read from %s", self._folder.parent)
        return True

    def resume(self, parts: Mapping[str, Stateful]) -> None:
        """Load the last epoch's state into these parts of a run, if there is one."""
        if saved := self._saved_epochs():
            states = torch.load(saved[-1], weights_only=True)
            for name, part in parts.items():
                part.load_state_dict(states[name])
            torch.set_rng_state(states["rng_cpu"])
            if device().type == "cuda":
                torch.cuda.set_rng_state(states["rng_cuda"])
            log.info("fine-tuning resumed from %s in %s", saved[-1].stem, saved[-1].parents[1])

    def save(self, number: int, parts: Mapping[str, Stateful]) -> None:
        """Save the state after an epoch, then delete the state of the previous epoch."""
        if self._folder is None:
            return
        earlier = self._saved_epochs()
        states: dict[str, Any] = {name: part.state_dict() for name, part in parts.items()}
        states["rng_cpu"] = torch.get_rng_state()
        if device().type == "cuda":
            states["rng_cuda"] = torch.cuda.get_rng_state()
        with complete_file(self._folder / f"epoch-{number:04}.pt") as partial:
            torch.save(states, partial)
        for path in earlier:
            path.unlink()

    def finish(self, state: RunState) -> None:
        """Save the best weights and the epochs, and delete the checkpoints."""
        if self._folder is None:
            return
        epochs = json.dumps([asdict(epoch) for epoch in state.epochs])
        with complete_file(self._folder / FINISHED) as partial:
            save_file(state.best_state, partial, metadata={"epochs": epochs})
        for path in self._saved_epochs():
            path.unlink()

    def _saved_epochs(self) -> list[Path]:
        return [] if self._folder is None else sorted(self._folder.glob("epoch-*.pt"))
