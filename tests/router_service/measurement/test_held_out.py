"""Held-out predictions of an artifact: the figures of the arms that a configuration maps."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from router_service.artifact import (
    SHIPPED,
    Artifact,
    FrontierPoint,
)
from router_service.measurement.goals import reach_goals
from router_service.measurement.held_out import (
    HELD_OUT,
    HeldOut,
    describe_pool,
    goal_points,
    served_points,
)
from router_service.policies.costs import Price
from router_service.policies.verified import Verified, is_verified
from router_service.router import Router

LARGE, SMALL = "claude-sonnet-4.5", "grok-4.1-fast"


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    """Return the shipped artifact."""
    return Artifact.load(SHIPPED)


@pytest.fixture(scope="module")
def pair(artifact: Artifact) -> Router:
    """Return a router with two of the shipped artifact's eight arms, as in the README."""
    return Router(artifact, arms=[LARGE, SMALL])


def numbers(point: FrontierPoint) -> list[float]:
    """Return all figures of a point."""
    versus = point.versus_best
    assert versus is not None
    pairs = (point.accuracy_interval, point.cost_usd_interval, versus.cost_share_interval)
    intervals = [bound for pair in (*pairs, versus.difference_interval) for bound in pair or ()]
    measures = [point.accuracy.value, point.accuracy.stderr, point.cost_usd.value]
    return [*measures, versus.difference, versus.cost_share or 0.0, *intervals]


def test_shipped_figures_follow_from_the_shipped_predictions(artifact: Artifact) -> None:
    """The file gives the manifest's frontier, metrics and policies for all arms at their prices."""
    manifest = artifact.manifest
    found = describe_pool(artifact, manifest.arms, {}).manifest
    assert [point.policy for point in found.frontier] == [p.policy for p in manifest.frontier]
    for got, wanted in zip(found.frontier, manifest.frontier, strict=True):
        assert (got.accuracy, got.cost_usd) == (wanted.accuracy, wanted.cost_usd)
        assert numbers(got) == pytest.approx(numbers(wanted), rel=1e-9, abs=1e-12)
    assert found.metrics == manifest.metrics
    assert found.policies["fast"] == manifest.policies["fast"]
    assert reach_goals(manifest, goal_points(artifact)) == manifest


@pytest.mark.parametrize(
    "arms", [("claude-sonnet-4.5", "gpt-4.1-mini", "grok-4.1-fast"), (LARGE, SMALL)]
)
def test_default_reaches_its_goal_in_every_pool(artifact: Artifact, arms: tuple[str, ...]) -> None:
    """It is the cheapest rule within half a point of the best model and no worse than `verified`.

    Before verified answers are measured, it is `verified`. Where they are forbidden, it is the
    nearest rule that chooses once. The goal `within=0.5` gives the same rule. All policies with a
    name that verify answers have the floor, and are measured with it.
    """
    router = Router(artifact, arms=arms)
    standard = router.policy("verified")
    assert router.policy() == standard
    router.reach_goals(verified_goals=True)
    manifest, verified = router.artifact.manifest, goal_points(router.artifact)
    points = {point.policy: point for point in (*manifest.frontier, *verified)}
    default, best = points[str(router.policy())], manifest.metrics["best_single_accuracy"].value
    least = max(best - 0.005, points[str(standard)].accuracy.value)
    reaching = [point for point in points.values() if point.accuracy.value >= least]
    assert default in reaching
    assert default.cost_usd.value == min(point.cost_usd.value for point in reaching)
    assert str(router.policy("within=0.5", verified_goals=True)) == default.policy
    assert default in served_points(router.artifact)
    named = (router.policy(name) for name in ("verified", None, "economy", "quality"))
    assert {each.floor for each in named if isinstance(each, Verified)} == {0.5}
    most = max(points.values(), key=lambda point: point.accuracy.value)
    assert points[str(router.policy("quality"))].accuracy == most.accuracy
    router.reach_goals(verified_goals=False)
    assert all(not is_verified(rule) for rule in router.artifact.manifest.policies.values())


def test_other_prices_change_costs_and_not_answers(artifact: Artifact) -> None:
    """At twice the prices, threshold and drift rules cost twice as much, for equal answers."""
    manifest = artifact.manifest
    doubled = {
        arm: Price(
            input_usd_per_mtok=2 * (profile.price.input_usd_per_mtok or 0),
            output_usd_per_mtok=2 * (profile.price.output_usd_per_mtok or 0),
        )
        for arm, profile in manifest.profile.items()
    }
    repriced = Router(artifact, prices=doubled).artifact.manifest
    points = {point.policy: point for point in repriced.frontier}
    for point in manifest.frontier:
        if not point.policy.startswith("utility"):
            assert points[point.policy].accuracy == point.accuracy
            assert points[point.policy].cost_usd.value == pytest.approx(2 * point.cost_usd.value)


def held_out(queries: int, attempts: int = 1) -> HeldOut:
    """Return predictions for two arms, with answers that were counted in whole tokens."""
    rng = np.random.default_rng(0)
    shape = (queries, 2)
    return HeldOut(
        probabilities=rng.random(shape),
        correct=rng.integers(0, attempts + 1, shape) / attempts,
        input_tokens=rng.integers(50, 5000, shape).astype(float),
        output_tokens=rng.integers(1, 200, shape) / attempts,
        seconds=rng.random(shape).astype(np.float32).astype(float),
        folds=rng.integers(0, 5, queries),
        usage=rng.random((5, 2, 3)) * 100,
    )


@pytest.mark.parametrize("attempts", [1, 3], ids=["asked once", "asked three times"])
def test_file_keeps_every_number(tmp_path: Path, attempts: int) -> None:
    """What is written is read again, also shares of several attempts; whole numbers take less."""
    written = held_out(400, attempts)
    written.write(tmp_path)
    read = HeldOut.read(tmp_path / HELD_OUT)
    for field in fields(HeldOut):
        assert_array_equal(getattr(read, field.name), getattr(written, field.name))
    assert (tmp_path / HELD_OUT).stat().st_size < 400 * 2 * (60 if attempts > 1 else 20)
