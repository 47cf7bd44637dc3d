"""What a run leaves after each epoch, so that one that was killed goes on as if it had not been."""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import Accelerator
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from switchcraft_training.config import RunConfig
from switchcraft_training.finetune.batches import Rows
from switchcraft_training.finetune.epochs import Epoch
from switchcraft_training.finetune.frozen import weights_sha256

log = logging.getLogger(__name__)

FINISHED = "finished.safetensors"


class Course:
    """What a run knows beside weights, optimizer and rate: epochs, shuffles, the best weights."""

    def __init__(self, seed: int) -> None:
        self.epochs: list[Epoch] = []
        self.rng = np.random.default_rng(seed)
        self.best_state: dict[str, Tensor] = {}

    def keep(self, module: nn.Module) -> None:
        """Take a copy of the weights, as the best so far."""
        state = module.state_dict()
        self.best_state = {name: tensor.detach().cpu().clone() for name, tensor in state.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return all of it, as Accelerate keeps what is registered with it."""
        epochs = [asdict(epoch) for epoch in self.epochs]
        return {"epochs": epochs, "rng": self.rng.bit_generator.state, "best": self.best_state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self.epochs = [Epoch(**epoch) for epoch in state["epochs"]]
        self.rng.bit_generator.state = state["rng"]
        self.best_state = state["best"]


def fingerprint(
    accelerator: Accelerator, encoder: nn.Module, config: RunConfig, rows: tuple[Rows, Rows]
) -> str:
    """Return the SHA-256 of all that the weights of a fine-tuned encoder follow from."""
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
        digest.update(json.dumps([row.token_ids for row in part.packed]).encode())
        digest.update(part.labels.tobytes())
    return digest.hexdigest()


class Checkpoints:
    """One run's folder below a workspace: the last epoch's state, or what the run ended with.

    Without a workspace nothing is kept. An epoch's folder is complete once it has its name.
    """

    def __init__(self, workspace: Path | None, accelerator: Accelerator, identity: str) -> None:
        self._folder = None if workspace is None else workspace / "checkpoints" / identity
        self._accelerator = accelerator

    def finished(self, course: Course) -> bool:
        """Take over the end of a run that came to it; tell whether there was one."""
        if self._folder is None or not (self._folder / FINISHED).exists():
            return False
        with safe_open(self._folder / FINISHED, framework="pt") as file:
            course.best_state = {
                name: file.get_tensor(name)
                for name in file.keys()  # noqa: SIM118 - a file, no mapping
            }
            course.epochs = [Epoch(**epoch) for epoch in json.loads(file.metadata()["epochs"])]
        log.info("fine-tuning was finished: weights read from %s", self._folder)
        return True

    def resume(self) -> None:
        """Go on from the last complete epoch, where there is one."""
        complete = self._complete()
        if complete:
            self._accelerator.load_state(str(complete[-1]))
            log.info("fine-tuning resumed from %s", complete[-1])

    def save(self, number: int) -> None:
        """Write the state after an epoch, then drop the epoch before."""
        if self._folder is None:
            return
        partial = self._folder / "partial"
        self._accelerator.save_state(str(partial))
        self._accelerator.wait_for_everyone()
        if self._accelerator.is_main_process:
            earlier = self._complete()
            partial.rename(self._folder / f"epoch-{number:04}")
            _remove(earlier)
        self._accelerator.wait_for_everyone()

    def finish(self, course: Course) -> None:
        """Keep the best weights and the epochs alone."""
        if self._folder is None or not self._accelerator.is_main_process:
            return
        epochs = json.dumps([asdict(epoch) for epoch in course.epochs])
        partial = self._folder / "finished.partial"
        self._folder.mkdir(parents=True, exist_ok=True)
        save_file(course.best_state, partial, metadata={"epochs": epochs})
        partial.replace(self._folder / FINISHED)
        _remove(self._complete())

    def _complete(self) -> list[Path]:
        return [] if self._folder is None else sorted(self._folder.glob("epoch-*"))


def _remove(folders: list[Path]) -> None:
    for folder in folders:
        shutil.rmtree(folder)
