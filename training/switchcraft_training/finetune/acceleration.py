"""Processes, devices and precision, through Hugging Face Accelerate.

`accelerate launch -m switchcraft_training.cli run ...` starts one process per device. Each process
sees all rows and works on its share of every batch. Only the main process writes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import parse_flag_from_env
from torch import Tensor

from router_service.core.errors import ConfigError
from switchcraft_training.config import RunConfig


def start(config: RunConfig) -> Accelerator:
    """Return this process's part in a run, in the precision that the configuration asks for.

    Raises ConfigError for fp16 on a CPU.
    """
    device = _state().device.type
    default = "fp16" if device == "cuda" else "no"  # appendix on training configuration
    precision = config.training.precision or default
    if precision == "fp16" and device == "cpu":
        problem = "fp16 needs a GPU; use bf16, or leave it out"
        raise ConfigError(config.name, "training.precision", problem)
    logging.getLogger("accelerate").setLevel(logging.WARNING)  # it tells of every file it writes
    return Accelerator(mixed_precision=precision)


def is_main_process() -> bool:
    """Tell whether this process is the one that writes; a process on its own is."""
    return bool(_state().is_main_process)


@contextmanager
def main_process_first() -> Iterator[None]:
    """Let the main process do something before the others, which then find it done."""
    with _state().main_process_first():
        yield


def processes() -> int:
    """Return how many processes were launched together."""
    return int(_state().num_processes)


def _state() -> PartialState:
    # The flag of `accelerate launch --cpu` is otherwise read too late, by the Accelerator.
    return PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU"))


def gather_strided(accelerator: Accelerator, own: Tensor) -> Tensor:
    """Put together what process p of P has computed of rows p, p + P, ...; each has as many."""
    gathered: Tensor = accelerator.gather(own)
    by_process = gathered.view(accelerator.num_processes, *own.shape)  # (P, rows, ...)
    return torch.flatten(by_process.transpose(0, 1), 0, 1)  # (rows * P, ...)
