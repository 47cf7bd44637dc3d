"""Memory of the commands that read a decision log: it does not grow with the logged texts."""

from __future__ import annotations

import tracemalloc
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from switchcraft_training.decisions.log import DecisionLog, read_log
from switchcraft_training.decisions.queries import iterate_queries
from switchcraft_training.replay.replay import replay_log
from tests.training.decisions.cases import Line, call, content, decision, expects, right, write_log

DECISIONS = 150
TEXT_BYTES = 25_000


def replay(log: DecisionLog) -> None:
    """Replay two policies."""
    replay_log(log, ["drift=0.05", "theta=0.8"])


def convert(log: DecisionLog) -> None:
    """Convert a log to training rows, and keep none."""
    deque(iterate_queries(log, Counter(), weak_evidence=True), maxlen=0)


def log_lines() -> Iterator[Line]:
    """Yield decisions with long, different texts, and feedback of both kinds."""
    for i in range(DECISIONS):
        made, text = (call("Oslo"),), f"a trip, number {i:06}; ".ljust(TEXT_BYTES, f"{i % 10}")
        yield decision(
            f"d{i}", "large" if i % 2 else "small", propensity=0.5, content=content(text, made)
        )
        yield expects(f"d{i}", *made) if i % 5 == 0 else right(f"d{i}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a log with more than `TEXT_BYTES` for each decision."""
    return write_log(tmp_path_factory.mktemp("log"), log_lines())


@pytest.mark.parametrize("use", [replay, convert])
def test_texts_of_a_log_are_not_kept(folder: Path, use: Callable[[DecisionLog], None]) -> None:
    """The peak of traced memory is less than half of the texts' size."""
    use(read_log(folder))  # imports what is needed, and fills caches
    tracemalloc.start()
    try:
        use(read_log(folder))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < DECISIONS * TEXT_BYTES / 2
