"""A training run's time and memory grow at most as n log n."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.corpus import DATASETS, Corpus, write_corpus
from benchmarks.training_scale import measure_cheap
from switchcraft_training.data.splits import key_of
from switchcraft_training.datasets.rows import read_rows

pytestmark = pytest.mark.slow

FEW, MANY = 2_000, 10_000
SLACK = 2.5
"""Factor for the noise of a busy machine, and for what single queries need in addition."""
QUERY_MB = 0.03
"""What a query needs at the peak, which is the calibration."""
FIXED_S, FIXED_MB = 0.3, 60.0
"""What does not depend on the number of queries, and what allocators keep."""


@pytest.mark.slow
def test_cheap_stages_of_10000_queries_grow_as_n_log_n(tmp_path: Path) -> None:
    """Reading, judging, near-duplicates, calibration and the main table need no quadratic time."""
    few, many = (
        {usage.stage: usage for usage in measure_cheap(tmp_path / str(rows), rows)}
        for rows in (FEW, MANY)
    )
    growth = MANY * math.log(MANY) / (FEW * math.log(FEW))
    assert list(few) == list(many)
    for stage, usage in many.items():
        limit_s = SLACK * growth * few[stage].cpu_seconds + FIXED_S
        assert usage.cpu_seconds < limit_s, (stage, few[stage], usage)
    first, last = (max(usage.peak_memory_mb for usage in each.values()) for each in (few, many))
    assert last - first < SLACK * (MANY - FEW) * QUERY_MB + FIXED_MB


def test_the_corpus_has_repeated_queries_conversations_and_learnable_labels(
    tmp_path: Path,
) -> None:
    """As in the paper's corpus, queries repeat, and conversations have several examples."""
    write_corpus(tmp_path, 600)
    examples = [judged.example for judged in read_rows(tmp_path / "rows.jsonl")]
    assert len({key_of(example).row for example in examples}) == 600
    assert 0.1 < 1 - 600 / len(examples) < 0.35
    assert {example.dataset for example in examples} <= set(DATASETS)
    sizes = [len(example.request["messages"]) for example in examples]
    assert min(sizes) == 1
    assert max(sizes) > 5
    tools = [tool for example in examples for tool in example.request["tools"]]
    assert len({id(tool) for tool in tools}) == len({tool["function"]["name"] for tool in tools})
    one, other = (list(Corpus(np.random.default_rng(0)).examples(50)) for _ in range(2))
    assert one == other
