"""No answer and no tool schema makes the checker crash."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.training.checking.fuzz import outcomes


@pytest.mark.slow
def test_random_pairs_raise_only_schema_errors() -> None:
    """For every random pair, the checker returns a consistent verdict or raises SchemaError."""
    counts = Counter(outcomes(30_000))
    assert set(counts) == {"right", "wrong", "no schema"}
    assert min(counts.values()) > 1_000
