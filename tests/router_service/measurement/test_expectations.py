"""Expected accuracy: what it is corrected by, and how often its interval is right."""

from __future__ import annotations

import pytest

from router_service.artifact import SHIPPED, Artifact
from router_service.measurement.expectations import (
    STANDARD_ERRORS,
    EstimateError,
    RelativeAccuracy,
    measure_errors,
)

BEST = "claude-sonnet-4.5"


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    """Load the shipped artifact."""
    return Artifact.load(SHIPPED)


def test_errors_of_the_shipped_policies_are_measured_once(artifact: Artifact) -> None:
    """Verified answers are right more often than the verifier says; the figures are cached."""
    errors = measure_errors(artifact, BEST)
    assert errors is not None
    verified, once = errors.find("verified=0.0106"), errors.find("utility=0.0306")
    assert verified is not None
    assert once is not None
    assert 0.01 < verified.bias < 0.04
    assert 0 < verified.spread < once.spread < 0.04
    assert measure_errors(artifact, BEST) is errors


def test_interval_contains_chance_and_error() -> None:
    """The error of the probabilities adds to chance; an expectation is corrected by its bias."""
    each = EstimateError(bias=0.01, spread=0.02, variance_share=0.5).expect(0.8, 0.9)
    assert (each.baseline_correct, each.error) == (0.9, 0.02)
    assert (each.correct, each.variance) == pytest.approx((0.81, 0.5 * (0.16 + 0.09)))
    found = RelativeAccuracy.of(80.0, 100.0, variance=36.0, error=8.0)
    assert found is not None
    half = STANDARD_ERRORS * 0.1
    assert (found.value, found.low, found.high) == pytest.approx((0.8, 0.8 - half, 0.8 + half))
    assert RelativeAccuracy.of(0.0, 0.0, variance=0.0, error=0.0) is None
