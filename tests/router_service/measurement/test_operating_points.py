"""The measured operating points of a pool, by policy and by cost."""

from __future__ import annotations

import pytest

from router_service.measurement.operating_points import OperatingPoints
from tests.frontiers import point

POINTS = OperatingPoints(
    (
        point("theta=0.2", 0.70, 1000),
        point("theta=0.5", 0.80, 2000),
        point("theta=0.8", 0.85, 5000),
        point("drift=0.1", 0.75, 3000),
        point("verified=0.001", 0.82, 1500),
        point("verified=0.01", 0.90, 4000),
    ),
    {"default": "theta=0.8", "economy": "theta=0.2", "verified": "verified=0.01"},
    point("best", 0.88, 10000),
)


def test_the_front_has_verified_points_and_no_dominated_ones() -> None:
    """Points that choose once and verified ones compete, and each is more accurate than cheaper."""
    assert [each.policy for each in POINTS.front] == [
        "theta=0.2",
        "verified=0.001",
        "verified=0.01",
    ]
    assert [each.policy for each in POINTS.front_once] == ["theta=0.2", "theta=0.5", "theta=0.8"]


@pytest.mark.parametrize(
    ("policy", "found"),
    [
        ("default", "theta=0.8"),
        ("theta=0.52", "theta=0.5"),
        ("verified=0.3", "verified=0.01"),
        ("best", "best"),
        ("accuracy=best", None),
    ],
)
def test_policies_are_found_by_name_rule_or_nearest_rule(policy: str, found: str | None) -> None:
    """A rule between two measured ones has the figures of the nearer one of its kind."""
    each = POINTS.find(policy)
    assert (None if each is None else each.policy) == found
