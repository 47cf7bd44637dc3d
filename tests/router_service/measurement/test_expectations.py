"""Expected accuracy: what it is corrected by, and how often its interval is right."""

from __future__ import annotations

import pytest

from router_service.artifact import SHIPPED, Artifact
from router_service.measurement.expectations import measure_errors

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
