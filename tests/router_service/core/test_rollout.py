"""A canary is withdrawn for what chance does not explain, and for nothing less."""

from __future__ import annotations

import random

import pytest

from router_service.core.releases import Canary, Release, ReleaseStats, find_exceeded_limit

RELEASE = Release(name="r", path="r", manifest_sha256="0" * 64, created="2026-01-01T00:00:00Z")
BOUNDS = Canary(release=RELEASE, max_error_increase=0.02, max_cost_ratio=1.2, min_requests=200)


def tally(requests: int, failures: int = 0, cost_usd: float | None = 0.001) -> ReleaseStats:
    """Return a tally of requests that all cost the same."""
    counted = ReleaseStats()
    for index in range(requests):
        counted.add(has_failed=index < failures, cost_usd=cost_usd)
    return counted


@pytest.mark.parametrize(
    ("tried", "stable", "bound"),
    [
        (tally(199, 199), tally(2000), None),  # too few to be judged
        (tally(200, 30), tally(2000, 20), "errors"),
        (tally(200, 200), tally(20), "errors"),
        (tally(200, 7), tally(2000, 20), None),  # 3.5% beside 1%: chance may explain it
        (tally(20_000, 700), tally(20_000, 200), "errors"),  # the same, and it does not
        (tally(20_000, 590), tally(20_000, 200), None),  # 1.95 points more: within the bound
        (tally(200, cost_usd=0.0013), tally(2000), "cost"),
        (tally(200, cost_usd=0.0011), tally(2000), None),
        (tally(200, cost_usd=None), tally(2000), None),  # unknown is not dear
        (tally(200, cost_usd=0.1), tally(1), None),
        (tally(200), tally(2000, cost_usd=0.0), "cost"),  # free before
        (tally(200, cost_usd=0.0), tally(2000, cost_usd=0.0), None),
    ],
)
def test_bounds(tried: ReleaseStats, stable: ReleaseStats, bound: str | None) -> None:
    """A bound counts from `min_requests` on, and once the 95% interval lies beyond it."""
    excess = find_exceeded_limit(tried, stable, BOUNDS)
    assert (excess.limit if excess else None) == bound


def test_an_equal_release_is_rarely_withdrawn() -> None:
    """A canary like the stable release, judged after every request, is kept 95 times in 100.

    Costs are log-normal with a factor of e as standard deviation, and one request in fifty fails.
    """
    draw = random.Random(0)
    withdrawn = 0
    for _ in range(100):
        tried, stable = ReleaseStats(), ReleaseStats()
        for index in range(4000):
            side = tried if index % 10 == 0 else stable
            side.add(has_failed=draw.random() < 0.02, cost_usd=draw.lognormvariate(0, 1))
            if side is tried and find_exceeded_limit(tried, stable, BOUNDS):
                withdrawn += 1
                break
    assert withdrawn <= 5


def test_the_reason_has_the_figures() -> None:
    """What is told is what was counted."""
    excess = find_exceeded_limit(tally(200, 100), tally(400, 4), BOUNDS)
    assert excess is not None
    assert excess.text == "50.0% of 200 requests failed, 1.0% of the stable release's"
