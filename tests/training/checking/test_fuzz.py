"""No answer and no tool schema makes the checker crash."""

from __future__ import annotations

from collections import Counter

from tests.training.checking.fuzz import outcomes


def test_random_pairs_raise_only_schema_errors() -> None:
    """Every random pair has a verdict consistent with its errors, or an invalid schema."""
    counts = Counter(outcomes(30_000))
    assert set(counts) == {"right", "wrong", "no schema"}
    assert min(counts.values()) > 1_000
