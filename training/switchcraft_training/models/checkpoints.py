"""Epochs of a run, and checkpoints from which an interrupted run resumes with the same result."""

from __future__ import annotations

import json
import logging
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import Accelerator
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from switchcraft_training.config import RunConfig, TrainingConfig
from switchcraft_training.data.table import Table
from switchcraft_training.models.frozen import weights_sha256
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

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Epoch:
        """Return an epoch of a `report.json`, where null stands for NaN."""
        known: dict[str, Any] = {name: math.nan if v is None else v for name, v in values.items()}
        return cls(**known)


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


class RunState:
    """State of a run besides weights, optimizer and schedule: epochs, shuffling, best weights."""

    def __init__(self, seed: int) -> None:
        self.epochs: list[Epoch] = []
        self.rng = np.random.default_rng(seed)
        self.best_state: dict[str, Tensor] = {}

    def keep_best(self, module: nn.Module) -> None:
        """Copy the module's weights to `best_state`."""
        state = module.state_dict()
        self.best_state = {name: tensor.detach().cpu().clone() for name, tensor in state.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the state, in the form that Accelerate saves."""
        epochs = [asdict(epoch) for epoch in self.epochs]
        return {"epochs": epochs, "rng": self.rng.bit_generator.state, "best": self.best_state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state from the result of `state_dict`."""
        self.epochs = [Epoch(**epoch) for epoch in state["epochs"]]
        self.rng.bit_generator.state = state["rng"]
        self.best_state = state["best"]


def fingerprint(
    accelerator: Accelerator, encoder: nn.Module, config: RunConfig, rows: tuple[Table, Table]
) -> str:
    """Return the SHA-256 of everything that determines the weights of a fine-tuned encoder."""
    settings = {
        "training": config.training.model_dump(mode="json"),
        "encoder": config.encoder.model_dump(mode="json", exclude={"source"}),
        "seed": config.seed,
        "arms": len(config.arms),
        "processes": accelerator.num_processes,
        "device": accelerator.device.type,
        "precision": accelerator.mixed_precision,
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

    Without a workspace, nothing is saved. An epoch's folder gets its name only when it is complete.
    """

    def __init__(self, workspace: Path | None, accelerator: Accelerator, identity: str) -> None:
        self._folder = None if workspace is None else workspace / "checkpoints" / identity
        self._accelerator = accelerator

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

    def resume(self) -> None:
        """Load the last complete epoch, if there is one."""
        complete = self._complete_epochs()
        if complete:
            self._accelerator.load_state(str(complete[-1]))
            epoch, folder = complete[-1].name, complete[-1].parents[1]
            log.info("fine-tuning resumed from %s in %s", epoch, folder)

    def save(self, number: int) -> None:
        """Save the state after an epoch, then delete the state of the previous epoch."""
        if self._folder is None:
            return
        partial = self._folder / "partial"
        self._accelerator.save_state(str(partial))
        self._accelerator.wait_for_everyone()
        if self._accelerator.is_main_process:
            earlier = self._complete_epochs()
            partial.rename(self._folder / f"epoch-{number:04}")
            for folder in earlier:
                shutil.rmtree(folder)
        self._accelerator.wait_for_everyone()

    def finish(self, state: RunState) -> None:
        """Save the best weights and the epochs, and delete the checkpoints."""
        if self._folder is None or not self._accelerator.is_main_process:
            return
        epochs = json.dumps([asdict(epoch) for epoch in state.epochs])
        with complete_file(self._folder / FINISHED) as partial:
            save_file(state.best_state, partial, metadata={"epochs": epochs})
        for folder in self._complete_epochs():
            shutil.rmtree(folder)

    def _complete_epochs(self) -> list[Path]:
        return [] if self._folder is None else sorted(self._folder.glob("epoch-*"))
