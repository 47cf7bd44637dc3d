"""Processes that do the independent parts of a stage, such as the folds, at the same time."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import torch
from threadpoolctl import threadpool_limits

from switchcraft_training.models.optimization import device
from switchcraft_training.progress import PartUsage, add_part, each_part, measuring_part, track

Shared = TypeVar("Shared")
Part = TypeVar("Part")
Result = TypeVar("Result")

PRELOADED = ("switchcraft_training.verification",)
"""Modules that are imported once, by the process that all workers are forked from."""


@dataclass(frozen=True, slots=True)
class Workers:
    """A number of processes. A single one is the calling process itself.

    The processes start with each call and end with it, so that the memory of one stage is free for
    the next. They divide the machine's threads among themselves.
    """

    processes: int = 1

    @classmethod
    def available(cls) -> Workers:
        """Return a process per core, or a single one if a GPU trains."""
        if device().type != "cpu":
            return cls()
        return cls(torch.get_num_threads())

    def map(
        self,
        function: Callable[[Shared, Part], Result],
        shared: Shared,
        parts: Sequence[Part],
        unit: str,
    ) -> Iterator[Result]:
        """Yield `function(shared, part)` for each part, in their order.

        `function` must be a function of a module, and raise only errors that can be pickled. Time
        and memory of all processes are added to the current stage. `unit` is what a part is called.
        Raises `BrokenProcessPool` if a process is killed, for example because memory is exhausted.
        """
        count = min(self.processes, len(parts))
        if count <= 1:
            for part in each_part(parts, unit):
                yield function(shared, part)
            return
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(PRELOADED))
        threads = max(1, torch.get_num_threads() // count)
        with TemporaryDirectory() as folder:
            # A file, which each process reads only once; an argument would be sent with each part.
            path = Path(folder) / "shared.pickle"
            with path.open("wb") as file:
                pickle.dump(shared, file, pickle.HIGHEST_PROTOCOL)
            executor = ProcessPoolExecutor(count, context, _start, (threads,))
            try:
                started = [executor.submit(_do_part, function, path, part) for part in parts]
                for future in track(started, "finished", len(parts), f"{unit}s"):
                    result, usage = future.result()
                    add_part(usage)
                    yield result
            finally:
                executor.shutdown(cancel_futures=True)


SINGLE_PROCESS = Workers()


def _start(threads: int) -> None:
    """Prepare a process: limit its threads, silence its progress, and end it with its parent."""
    threadpool_limits(threads)
    torch.set_num_threads(threads)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@lru_cache(maxsize=1)
def _read_shared(path: Path) -> Any:  # noqa: ANN401 - whatever the stage shares
    with path.open("rb") as file:
        return pickle.load(file)  # noqa: S301 - written by the parent process


def _do_part(
    function: Callable[[Any, Any], Result],
    path: Path,
    part: Any,  # noqa: ANN401
) -> tuple[Result, PartUsage]:
    with measuring_part() as usage:
        result = function(_read_shared(path), part)
    return result, usage
