"""Nothing that a model answers, and nothing that a tool declares, crashes the checker."""

from __future__ import annotations

from collections import Counter

from tests.training.checking.fuzz import outcomes


def test_random_pairs_raise_nothing() -> None:
    """Every random pair has a verdict that agrees with its errors, or a schema that is refused."""
    counts = Counter(outcomes(30_000))
    assert set(counts) == {"right", "wrong", "no schema"}
    assert min(counts.values()) > 1_000
