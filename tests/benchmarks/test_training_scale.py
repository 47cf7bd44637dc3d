"""A training run's time and memory grow at most as n log n."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from benchmarks.training_scale import measure_cheap

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
