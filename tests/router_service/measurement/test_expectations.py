"""Expected accuracy: what it is corrected by, and how often its interval is right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from router_service.artifact import SHIPPED, Artifact
from router_service.measurement.expectations import (
    EstimateError,
    RelativeAccuracy,
    measure_errors,
)
from router_service.measurement.held_out import HELD_OUT

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


@pytest.mark.parametrize(
    ("missing", "arm"), [("predictions", BEST), ("arm", "gpt-5.2"), ("arm", "unknown")]
)
def test_nothing_is_measured_without_predictions_or_the_baseline(
    artifact: Artifact, missing: str, arm: str
) -> None:
    """The accuracy is then not estimated."""
    if missing == "predictions":
        files = {name: sha for name, sha in artifact.manifest.files.items() if name != HELD_OUT}
        changed = artifact.manifest.model_copy(update={"files": files})
        artifact = replace(artifact, manifest=changed, directory=Path("/nowhere"))
    else:
        artifact = replace(artifact, pool=(BEST, "gpt-5-mini"))
    assert measure_errors(artifact, arm) is None


def test_interval_contains_chance_and_error() -> None:
    """With many requests, the error of the probabilities remains."""
    error = EstimateError(bias=0.0, spread=0.02, variance_share=0.5)
    widths = []
    for n in (100, 10_000, 1_000_000):
        each = error.expect(0.8, 0.9)
        found = RelativeAccuracy.of(n * 0.8, n * 0.9, n * each.variance, n * each.error)
        assert found is not None
        widths.append(found.high - found.low)
    assert widths[0] > widths[1] > widths[2] > 2 * 0.02 / 0.9
    assert RelativeAccuracy.of(0.0, 0.0, 0.0, 0.0) is None
