"""The shipped artifact with a frontier of a few points, for tests of goals."""

from __future__ import annotations

from collections.abc import Sequence

from router_service.artifact import SHIPPED, Artifact, FrontierPoint, Measure, VersusBest

BEST = 0.85


def point(policy: str, accuracy: float, usd_per_1k: float) -> FrontierPoint:
    """Return a measured point with intervals, relative to a best single model of 85%."""
    measures = [Measure(value=v, stderr=0.01, n=9) for v in (accuracy, usd_per_1k / 1_000)]
    ahead, cost = accuracy - BEST, usd_per_1k / 1_000
    return FrontierPoint(
        policy=policy,
        accuracy=measures[0],
        cost_usd=measures[1],
        accuracy_interval=(accuracy - 0.02, accuracy + 0.02),
        cost_usd_interval=(cost * 0.9, cost * 1.1),
        versus_best=VersusBest(
            difference=ahead, difference_interval=(ahead - 0.015, ahead + 0.015)
        ),
    )


def with_frontier(*frontier: FrontierPoint, verified: Sequence[FrontierPoint] = ()) -> Artifact:
    """Return the shipped artifact with these frontiers and a best single model of 85%."""
    shipped = Artifact.load(SHIPPED)
    metrics = {"best_single_accuracy": Measure(value=BEST, stderr=0.01, n=9)}
    frontiers = {"frontier": frontier, "verified_frontier": tuple(verified)}
    manifest = shipped.manifest.model_copy(update={**frontiers, "metrics": metrics})
    return Artifact(shipped.directory, manifest, shipped.tokenizer)


POINTS = (
    point("drift=0.1", 0.80, 0.1),
    point("drift=0.05", 0.86, 0.5),
    point("theta=0.85", 0.855, 0.7),
    point("theta=0.9", 0.9, 2),
)

VERIFIED_POINTS = (
    point("verified=0.001", 0.86, 0.2),
    point("verified=0.005", 0.93, 0.6),
)
