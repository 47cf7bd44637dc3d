"""Familiarity: how it falls with the distance, and which requests the shipped artifact flags."""

from __future__ import annotations

import math

import pytest

from router_service.predictor.familiarity import Familiarity, FamiliaritySpec

NAMES = ("turns", "tools", "query_chars", "system_chars")
SPEC = FamiliaritySpec(
    sizes=(("tools",), ("query_chars", "system_chars")),
    mean=(math.log1p(1), math.log1p(99)),
    scale=(1.0, 1.0),
    precision=((1.0, 0.0), (0.0, 1.0)),
    distances=(1.0, 2.0, 4.0),
    shares=(1.0, 0.1, 0.01),
    queries=100,
    base_rates={"a": 0.5},
)


def features(tools: float = 1) -> tuple[float, ...]:
    """Return the features in the order of `NAMES`."""
    return (1.0, tools, 99.0, 0.0)


def test_familiarity_falls_with_the_distance_from_1_to_0() -> None:
    """It is interpolated between the kept shares, and is 0 beyond all held-out queries."""
    familiarity = Familiarity(SPEC, NAMES)
    tools = [math.exp(distance) * 2 - 1 for distance in (0, 1, 1.5, 2, 3, 4, 4.01, 100)]
    found = [familiarity.of(features(count)) for count in tools]
    assert found == pytest.approx([1, 1, 0.55, 0.1, 0.055, 0.01, 0, 0], abs=1e-6)
    assert familiarity.of(features(math.nan)) == 0
