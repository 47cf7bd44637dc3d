"""The Berkeley Function Calling Leaderboard, v1 to v4: questions, truths, recorded answers."""

from switchcraft_training.datasets.bfcl.format import PACKAGE
from switchcraft_training.datasets.bfcl.recorded import (
    RecordedQuestions,
    open_recording,
    read_source,
)

__all__ = ["PACKAGE", "RecordedQuestions", "open_recording", "read_source"]
