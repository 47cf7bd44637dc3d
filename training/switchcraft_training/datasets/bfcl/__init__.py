"""The Berkeley Function Calling Leaderboard, v1 to v4: questions, truths, recorded answers."""

from __future__ import annotations

from switchcraft_training.datasets.bfcl.format import PACKAGE
from switchcraft_training.datasets.bfcl.recorded import (
    LeaderboardSnapshot,
    RecordedVerdict,
    Recording,
    RepeatedRuns,
    open_recording,
    read_source,
)

__all__ = [
    "PACKAGE",
    "LeaderboardSnapshot",
    "RecordedVerdict",
    "Recording",
    "RepeatedRuns",
    "open_recording",
    "read_source",
]
