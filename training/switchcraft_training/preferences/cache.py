"""Label matrices kept on disk, because judging a hundred thousand answers takes minutes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from switchcraft_training.preferences.labels import Labels
from switchcraft_training.profiling.usage import Usage


def save_labels(labels: Labels, path: Path) -> None:
    """Write a matrix in one step: a file that is there is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    read, written, seconds = labels.usage.matrices()
    with partial.open("wb") as file:
        np.savez_compressed(
            file,
            correct=labels.correct,
            attempts=labels.attempts,
            input_tokens=read,
            output_tokens=written,
            seconds=seconds,
        )
    partial.replace(path)


def load_labels(path: Path, arms: Sequence[str]) -> Labels:
    """Read what `save_labels` wrote of these arms."""
    with np.load(path, allow_pickle=False) as file:
        usage = Usage(file["input_tokens"], file["output_tokens"], file["seconds"])
        return Labels(tuple(arms), file["correct"], file["attempts"], usage)
