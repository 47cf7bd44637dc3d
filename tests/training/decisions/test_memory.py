"""Memory of the commands that read a decision log: it does not grow with the logged texts."""

from __future__ import annotations

import tracemalloc
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.own_traffic import write_log
from switchcraft_training.decisions.log import DecisionLog, read_log
from switchcraft_training.decisions.queries import iterate_queries
from switchcraft_training.replay.replay import replay_log

DECISIONS = 150
SIZE_BYTES = 2_900_000


def replay(log: DecisionLog) -> None:
    """Replay two policies."""
    replay_log(log, ["drift=0.05", "theta=0.8"])


def convert(log: DecisionLog) -> None:
    """Convert a log to training rows, and keep none."""
    deque(iterate_queries(log, Counter(), weak_evidence=True), maxlen=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a log with more than 12 KB in a decision."""
    folder = tmp_path_factory.mktemp("log") / "log"
    assert write_log(folder, DECISIONS, content_share=15) > DECISIONS * 12_000
    return folder


@pytest.mark.parametrize("use", [replay, convert])
def test_texts_of_a_log_are_not_kept(folder: Path, use: Callable[[DecisionLog], None]) -> None:
    """The peak of traced memory is less than half of the log's size."""
    use(read_log(folder))  # imports what is needed, and fills caches
    tracemalloc.start()
    try:
        use(read_log(folder))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < SIZE_BYTES / 2
