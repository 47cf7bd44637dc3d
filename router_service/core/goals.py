"""What a user wants of a policy -> the rule that was measured to do it at the least cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from router_service.core.artifact import FrontierPoint, Manifest
from router_service.core.errors import PolicyError

BEST = "best"
"""As accurate as the best single model."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """At least this share of correct answers, at the least cost; None: the best single model's."""

    at_least: float | None


@dataclass(frozen=True, slots=True)
class Budget:
    """At most this much on average, at the highest accuracy."""

    usd_per_1k: float


Goal = Accuracy | Budget


def parse_goal(text: str, *, param: str) -> Goal | None:
    """Read `accuracy=best`, `accuracy=0.87` or `usd_per_1k=0.5`; None for what is another rule.

    Raises PolicyError, naming `param` as where it stood, where the number is none.
    """
    name, _, number = text.partition("=")
    if name.strip() not in {"accuracy", "usd_per_1k"}:
        return None
    if name.strip() == "accuracy" and number.strip() == BEST:
        return Accuracy(None)
    try:
        value = float(number)
    except ValueError as exc:
        raise PolicyError(text, f"{number!r} is not a number", param=param) from exc
    if not 0.0 <= value < float("inf"):  # false for NaN too
        raise PolicyError(text, f"{number} is not a share or an amount", param=param)
    return Accuracy(value) if name.strip() == "accuracy" else Budget(value)


def reach(goal: Goal, manifest: Manifest, text: str, *, param: str) -> FrontierPoint:
    """Return the measured point that reaches a goal; raises PolicyError where none does.

    Accuracies and costs are those of the artifact's own held-out queries, with their errors.
    """
    if not manifest.frontier:
        raise PolicyError(text, "the artifact has no measured frontier", param=param)
    if isinstance(goal, Budget):
        return _within(goal.usd_per_1k / 1_000, manifest.frontier, text, param)
    floor = goal.at_least
    if floor is None:
        best = manifest.metrics.get("best_single_accuracy")
        if best is None:
            raise PolicyError(text, "the artifact does not know its best single model", param=param)
        floor = best.value
    return _as_accurate(floor, manifest.frontier, text, param)


def _as_accurate(
    floor: float, frontier: Sequence[FrontierPoint], text: str, param: str
) -> FrontierPoint:
    reached = [point for point in frontier if point.accuracy.value >= floor]
    if not reached:
        most = max(point.accuracy.value for point in frontier)
        raise PolicyError(text, f"the most accurate policy measured {most:.3f}", param=param)
    return min(reached, key=lambda point: (point.cost_usd.value, -point.accuracy.value))


def _within(
    cost_usd: float, frontier: Sequence[FrontierPoint], text: str, param: str
) -> FrontierPoint:
    reached = [point for point in frontier if point.cost_usd.value <= cost_usd]
    if not reached:
        least = min(point.cost_usd.value for point in frontier) * 1_000
        raise PolicyError(text, f"the cheapest policy measured {least:.3f} USD", param=param)
    return max(reached, key=lambda point: (point.accuracy.value, -point.cost_usd.value))
