"""The pointer of a publication, and when a canary exceeds its limits."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from router_service.core.errors import ArtifactError
from router_service.core.releases import (
    Canary,
    Publication,
    Release,
    ReleaseStats,
    find_exceeded_limit,
)

RELEASE = Release(name="r", path="r-1", manifest_sha256="ab" * 32, created="2026-01-01T00:00:00Z")
PUBLICATION = Publication(serial=2, stable=RELEASE, canary=Canary(release=RELEASE))


@pytest.mark.parametrize(
    "change",
    [
        {"schema_version": 2},
        {"serial": 0},
        {"serial": 10**400},
        {"stable": RELEASE.model_dump() | {"path": "a\0b"}},
        {"stable": RELEASE.model_dump() | {"path": "a" * 5000}},
        {"stable": RELEASE.model_dump() | {"created": "a" * 5000}},
        {"stable": None},
        {"canary": {"release": None}},
        {"canary": {"release": RELEASE.model_dump(), "share": 1.5}},
        {"canary": {"release": RELEASE.model_dump(), "max_cost_ratio": float("inf")}},
        {"stable": RELEASE.model_dump() | {"manifest_sha256": "short"}},
    ],
)
def test_invalid_values_are_refused(change: dict[str, object]) -> None:
    """The error names the source and the field."""
    tree = json.loads(PUBLICATION.to_json()) | change
    with pytest.raises(ArtifactError, match=rf"here: is not a publication: {next(iter(change))}"):
        Publication.parse(json.dumps(tree).encode(), "here")


def test_a_release_is_a_folder_next_to_the_pointer() -> None:
    """A path names a sibling of the pointer, and never leaves the directory."""
    beside = Path("/publications")
    assert RELEASE.directory(beside) == beside / "r-1"
    for path in ("..", ".", "../r-1", "a/b", "/volume/r-1"):
        with pytest.raises(ArtifactError, match="no folder beside the pointer"):
            RELEASE.model_copy(update={"path": path}).directory(beside)


TRIED_RELEASE = Release(
    name="r", path="r", manifest_sha256="0" * 64, created="2026-01-01T00:00:00Z"
)
LIMITS = Canary(
    release=TRIED_RELEASE, max_error_increase=0.02, max_cost_ratio=1.2, min_requests=200
)


def stats(requests: int, failures: int = 0, cost_usd: float | None = 0.001) -> ReleaseStats:
    """Return the statistics of requests that all cost the same."""
    counted = ReleaseStats()
    for index in range(requests):
        counted.add(has_failed=index < failures, cost_usd=cost_usd)
    return counted


@pytest.mark.parametrize(
    ("tried", "stable", "bound"),
    [
        (stats(199, 199), stats(2000), None),  # too few to be judged
        (stats(200, 30), stats(2000, 20), "errors"),
        (stats(200, 200), stats(20), "errors"),
        (stats(200, 7), stats(2000, 20), None),  # 3.5% and 1%: chance may explain the difference
        (stats(20_000, 700), stats(20_000, 200), "errors"),  # the same, and it does not
        (stats(20_000, 590), stats(20_000, 200), None),  # 1.95 points more: within the bound
        (stats(200, cost_usd=0.0013), stats(2000), "cost"),
        (stats(200, cost_usd=0.0011), stats(2000), None),
        (stats(200, cost_usd=None), stats(2000), None),  # unknown is not dear
        (stats(200, cost_usd=0.1), stats(1), None),
        (stats(200), stats(2000, cost_usd=0.0), "cost"),  # free before
        (stats(200, cost_usd=0.0), stats(2000, cost_usd=0.0), None),
    ],
)
def test_limits_count_from_min_requests_on(
    tried: ReleaseStats, stable: ReleaseStats, bound: str | None
) -> None:
    """A limit counts from `min_requests` on, and once the 95% interval lies beyond it."""
    excess = find_exceeded_limit(tried, stable, LIMITS)
    assert (excess.limit if excess else None) == bound


def test_an_equal_release_is_rarely_withdrawn() -> None:
    """A canary like the stable release, judged after every request, is kept 95 times in 100."""
    draw = random.Random(0)
    withdrawn = 0
    for _ in range(100):
        tried, stable = ReleaseStats(), ReleaseStats()
        for index in range(4000):
            side = tried if index % 10 == 0 else stable
            side.add(has_failed=draw.random() < 0.02, cost_usd=draw.lognormvariate(0, 1))
            if side is tried and find_exceeded_limit(tried, stable, LIMITS):
                withdrawn += 1
                break
    assert withdrawn <= 5
