"""The Berkeley Function Calling Leaderboard, v1 to v4: questions, truths, recorded answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from switchcraft_training.datasets.bfcl.files import PACKAGE
from switchcraft_training.datasets.bfcl.questions import read_source
from switchcraft_training.datasets.bfcl.recorded import (
    RecordedVerdict,
    Recording,
    Runs,
    Snapshot,
    recorded,
)
from switchcraft_training.records import Answer, Judged

__all__ = [
    "PACKAGE",
    "RecordedVerdict",
    "Recording",
    "Runs",
    "Snapshot",
    "arms",
    "read_answers",
    "read_examples",
    "read_source",
    "recorded",
]


def read_examples(root: Path) -> list[Judged]:
    """Read every judged single-turn question of a recording; raises DataError as it does."""
    return list(recorded(root).judged())


def arms(root: Path) -> list[str]:
    """Return the models whose answers were recorded, broken runs left out."""
    return recorded(root).arms()


def read_answers(root: Path, arm: str) -> Iterator[Answer]:
    """Read what a model answered in the judged categories; raises DataError as above."""
    return recorded(root).answers(arm)
