"""What a user wants of a policy -> the rule that was measured to do it at the least cost.

A goal may ask that more than the estimate reaches it: with `@95`, the worse end of the two-sided
95% interval that is shown must, so a bound of 97.5% on its side. The interval is of queries drawn
again; that a rule was picked on the same queries it does not know.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from router_service.core.artifact import FrontierPoint, Measure
from router_service.core.errors import PolicyError

SURE = "@95"
BEST = re.compile(r"best(?P<points>[+-]\d+(?:\.\d+)?)?")
KINDS = ("accuracy", "usd_per_1k")


@dataclass(frozen=True, slots=True)
class Accuracy:
    """At least this share of correct answers, at the least cost."""

    at_least: float
    sure: bool = False

    def __str__(self) -> str:
        return f"accuracy={self.at_least:g}{SURE if self.sure else ''}"


@dataclass(frozen=True, slots=True)
class BestSingle:
    """At least as accurate as the best single model, give or take points, at the least cost."""

    points: float = 0.0
    sure: bool = False

    def __str__(self) -> str:
        points = f"{self.points:+g}" if self.points else ""
        return f"accuracy=best{points}{SURE if self.sure else ''}"


@dataclass(frozen=True, slots=True)
class Budget:
    """At most this much on average, at the highest accuracy."""

    usd_per_1k: float
    sure: bool = False

    def __str__(self) -> str:
        return f"usd_per_1k={self.usd_per_1k:g}{SURE if self.sure else ''}"


Goal = Accuracy | BestSingle | Budget


class Priced(Protocol):
    """What has an accuracy and a cost, both measured."""

    @property
    def accuracy(self) -> Measure:
        """Share of correct answers."""
        ...

    @property
    def cost_usd(self) -> Measure:
        """USD a query."""
        ...


P = TypeVar("P", bound=Priced)


def parse_goal(text: str, *, param: str) -> Goal | None:
    """Read `accuracy=0.87`, `accuracy=best`, `accuracy=best-1` or `usd_per_1k=0.5`.

    Each may end in `@95`. None for what is another rule. Raises PolicyError, naming `param` as
    where it stood, for what is no number.
    """
    kind, _, asked = (part.strip() for part in text.partition("="))
    if kind not in KINDS:
        return None
    wanted, at, level = asked.partition("@")
    sure = bool(at)
    if sure and at + level != SURE:
        problem = f"intervals are measured at 95%: write {SURE}, not {at + level}"
        raise PolicyError(text, problem, param=param)
    best = BEST.fullmatch(wanted)
    if kind == "accuracy" and best is not None:
        return BestSingle(float(best["points"] or 0), sure)
    value = _number(wanted, text, param)
    return Accuracy(value, sure) if kind == "accuracy" else Budget(value, sure)


def reach(
    goal: Goal, frontier: Sequence[FrontierPoint], best_single: Measure | None, *, param: str
) -> FrontierPoint:
    """Return the measured point that reaches a goal; raises PolicyError where none does.

    `best_single` is the best single model's accuracy on the same queries. Of points that are
    accurate enough the cheapest, of those within a budget the most accurate.
    """
    if not frontier:
        raise PolicyError(str(goal), "the artifact has no measured frontier", param=param)
    if goal.sure and any(point.versus_best is None for point in frontier):
        problem = f"the artifact was measured without intervals; ask without {SURE}"
        raise PolicyError(str(goal), problem, param=param)
    if isinstance(goal, BestSingle) and best_single is None:
        raise PolicyError(
            str(goal), "the artifact does not know its best single model", param=param
        )
    margins = [(_margin(goal, point, best_single), point) for point in frontier]
    reached = [point for margin, point in margins if margin >= 0]
    if not reached:
        _, nearest = max(margins, key=lambda each: each[0])
        raise PolicyError(str(goal), _nearest(goal, nearest, best_single), param=param)
    return max(reached, key=_worth) if isinstance(goal, Budget) else min(reached, key=_dearness)


def pareto_front(points: Sequence[P]) -> tuple[P, ...]:
    """Return the points that no cheaper one matches, by rising cost."""
    ordered = sorted(points, key=_dearness)
    front = ordered[:1]
    for point in ordered[1:]:
        if point.accuracy.value > front[-1].accuracy.value:
            front.append(point)
    return tuple(front)


def _margin(goal: Goal, point: FrontierPoint, best_single: Measure | None) -> float:
    """Return by how much a point reaches a goal; below 0 where it does not."""
    match goal:
        case Accuracy(at_least):
            return _decisive(goal, point, best_single) - at_least
        case BestSingle(points):
            return _decisive(goal, point, best_single) - points / 100
        case Budget(usd_per_1k):
            return usd_per_1k / 1_000 - _decisive(goal, point, best_single)


def _decisive(goal: Goal, point: FrontierPoint, best_single: Measure | None) -> float:
    """Return the figure of a point that must reach a goal: an estimate, or where sure a bound."""
    versus = point.versus_best
    match goal:
        case Accuracy():
            bounds, estimate = point.accuracy_interval, point.accuracy.value
        case Budget():
            bounds, estimate = point.cost_usd_interval, point.cost_usd.value
        case BestSingle():
            bounds = versus.difference_interval if versus else None
            estimate = point.accuracy.value - (best_single.value if best_single else 0.0)
    if not goal.sure or bounds is None:
        return estimate
    return bounds[1] if isinstance(goal, Budget) else bounds[0]


def _nearest(goal: Goal, point: FrontierPoint, best_single: Measure | None) -> str:
    figure = _decisive(goal, point, best_single)
    match goal:
        case Accuracy():
            told = f"{figure:.1%}"
        case BestSingle():
            told = f"{figure * 100:+.1f} points against the best single model"
        case Budget():
            told = f"{figure * 1_000:.3f} USD per 1,000 requests"
    how = f" at the worse end of its 95% interval; without {SURE} its estimate decides"
    return (
        f"no measured rule reaches it; the nearest, {point.policy}, measured {told}"
        f"{how if goal.sure else ''}"
    )


def _dearness(point: Priced) -> tuple[float, float]:
    return point.cost_usd.value, -point.accuracy.value


def _worth(point: Priced) -> tuple[float, float]:
    return point.accuracy.value, -point.cost_usd.value


def _number(number: str, text: str, param: str) -> float:
    try:
        value = float(number)
    except ValueError as exc:
        raise PolicyError(text, f"{number!r} is not a number", param=param) from exc
    if not 0.0 <= value < float("inf"):  # false for NaN too
        raise PolicyError(text, f"{number} is not a share or an amount", param=param)
    return value
