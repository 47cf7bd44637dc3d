"""Breakdowns compared with numbers calculated by hand."""

from __future__ import annotations

import numpy as np

from switchcraft_training.evaluation.breakdowns import routing
from tests.training.evaluation.cases import table_of

#                     cheap  dear
CORRECT = np.array([[1, 1], [0, 1], [1, 0], [0, 0], [0, 1]], dtype=float)


COSTS = np.array([[1.0, 10.0]] * 5)


TABLE = table_of(CORRECT, COSTS, ("cheap", "dear"))


CHOSEN = np.array([1, 1, 0, 0, 0])


def test_routing_counts_the_four_outcomes() -> None:
    """A needlessly expensive arm is suboptimal; a miss is avoidable if another arm is right."""
    found = routing(TABLE, CHOSEN)
    assert [outcome.count for outcome in found.outcomes] == [2, 1, 1, 1]
    assert found.median_overhead_usd == found.total_overhead_usd == 9
