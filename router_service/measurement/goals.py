"""Goals: find the rule that was measured to reach the accuracy or cost that a user wants.

If a goal ends in `@95`, the worse end of the 95% interval must reach it instead of the estimate.
The interval is two-sided, so its worse end is a one-sided bound of 97.5%. The interval accounts for
the random choice of queries, but not for the rule being picked on the same queries.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from router_service.artifact import FrontierPoint, Manifest, Measure
from router_service.core.errors import PolicyError
from router_service.policies.base import Policy
from router_service.policies.registry import (
    DEFAULT,
    FAST,
    GOALS,
    WITHIN,
    NamedPolicy,
    choose_once,
    parse_policy,
)
from router_service.policies.verified import VERIFIED, Verified, is_verified

INTERVAL_SUFFIX = "@95"

_BEST = re.compile(r"best(?P<points>[+-]\d+(?:\.\d+)?)?")


@dataclass(frozen=True, slots=True)
class AccuracyGoal:
    """At least this share of correct answers, at the least cost."""

    at_least: float
    uses_interval: bool = False

    def __str__(self) -> str:
        return f"accuracy={self.at_least:g}{INTERVAL_SUFFIX if self.uses_interval else ''}"

    @property
    def meaning(self) -> str:
        """The goal in words."""
        return f"at least {self.at_least:.4g} of the answers correct{_certainly(self)}"


@dataclass(frozen=True, slots=True)
class BestSingleGoal:
    """The accuracy of the best single model, plus or minus some points, at the least cost."""

    points: float = 0.0
    uses_interval: bool = False

    def __str__(self) -> str:
        points = f"{self.points:+g}" if self.points else ""
        return f"accuracy=best{points}{INTERVAL_SUFFIX if self.uses_interval else ''}"

    @property
    def meaning(self) -> str:
        """The goal in words."""
        more = "more" if self.points > 0 else "fewer"
        unit = "point" if abs(self.points) == 1 else "points"
        points = f", or {abs(self.points):g} {unit} {more}" if self.points else ""
        return f"as many correct answers as the best single model{points}{_certainly(self)}"


@dataclass(frozen=True, slots=True)
class BudgetGoal:
    """The highest accuracy at this average cost or less."""

    usd_per_1k: float
    uses_interval: bool = False

    def __str__(self) -> str:
        return f"usd_per_1k={self.usd_per_1k:g}{INTERVAL_SUFFIX if self.uses_interval else ''}"

    @property
    def meaning(self) -> str:
        """The goal in words."""
        return f"at most {self.usd_per_1k:g} USD per 1,000 requests{_certainly(self)}"


@dataclass(frozen=True, slots=True)
class WithinGoal:
    """At most so many points below the best single model, and no worse than `verified`.

    It is the goal of default policies. If no rule reaches it, the nearest one counts.
    """

    points: float

    def __str__(self) -> str:
        return f"{WITHIN}={self.points:g}"

    @property
    def meaning(self) -> str:
        """The goal in words."""
        unit = "point" if self.points == 1 else "points"
        below = f"at most {self.points:g} {unit} fewer correct answers than the best single model"
        return f"{below}, and no fewer than with `verified`"

    def at_least(
        self, best_single: Measure, points: Sequence[FrontierPoint], standard: str | None
    ) -> AccuracyGoal:
        """Return the accuracy to reach; `standard` is the rule of `verified`, if points have it."""
        known = (point.accuracy.value for point in points if point.policy == standard)
        return AccuracyGoal(max(best_single.value - self.points / 100, *known, 0.0))


_ComparedGoal = AccuracyGoal | BestSingleGoal | BudgetGoal
Goal = _ComparedGoal | WithinGoal


def _certainly(goal: _ComparedGoal) -> str:
    return ", at the worse end of the 95% interval" if goal.uses_interval else ""


class MeasuredPoint(Protocol):
    """Anything with a measured accuracy and cost."""

    @property
    def accuracy(self) -> Measure:
        """Share of correct answers."""
        ...

    @property
    def cost_usd(self) -> Measure:
        """USD per query."""
        ...


P = TypeVar("P", bound=MeasuredPoint)

MeasuredPoints = Callable[[], Sequence[FrontierPoint]]
"""Returns measured points, which may take a second."""


def parse_goal(text: str, *, param: str) -> Goal | None:
    """Read `within=0.5`, `accuracy=0.87`, `accuracy=best`, `accuracy=best-1` or `usd_per_1k=0.5`.

    Each but the first may end in `@95`. Returns None for another kind of rule. Raises PolicyError
    if the goal is not a number; `param` is the field of the request that holds the text.
    """
    kind, _, value = (part.strip() for part in text.partition("="))
    if kind not in GOALS:
        return None
    wanted, at, level = value.partition("@")
    uses_interval = bool(at)
    if uses_interval and at + level != INTERVAL_SUFFIX:
        problem = f"intervals are measured at 95%: write {INTERVAL_SUFFIX}, not {at + level}"
        raise PolicyError(text, problem, param=param)
    best = _BEST.fullmatch(wanted)
    if kind == "accuracy" and best is not None:
        return BestSingleGoal(float(best["points"] or 0), uses_interval)
    try:
        number = float(wanted)
    except ValueError as exc:
        raise PolicyError(text, f"{wanted!r} is not a number", param=param) from exc
    if not 0.0 <= number < float("inf"):  # false for NaN too
        problem = f"the value must be finite and at least 0, not {wanted}"
        raise PolicyError(text, problem, param=param)
    if kind == "accuracy" and number > 1:
        problem = f"an accuracy is between 0 and 1, not {wanted}"
        if number <= 100:
            problem += f"; for {wanted}%, write accuracy={number / 100:g}{at}{level}"
        raise PolicyError(text, problem, param=param)
    if kind == WITHIN:
        if uses_interval:
            problem = f"this goal compares estimates; omit {INTERVAL_SUFFIX}"
            raise PolicyError(text, problem, param=param)
        return WithinGoal(number)
    goal_type = AccuracyGoal if kind == "accuracy" else BudgetGoal
    return goal_type(number, uses_interval)


def name_policy(text: str | None, policy: Policy | Verified) -> NamedPolicy[Policy | Verified]:
    """Return the policy that a text stands for, with the text as its name if it is no rule.

    The text is known to be valid. The default policy, and a rule, stay without a name.
    """
    goal = None if text is None else parse_goal(text, param="policy")
    if goal is not None:
        return NamedPolicy(policy, str(goal))
    is_name = (
        text not in {None, DEFAULT} and "=" not in (text or "") and not is_verified(text or "")
    )
    return NamedPolicy(policy, text if is_name else None)


def goal_policy(
    goal: Goal,
    manifest: Manifest,
    verified: MeasuredPoints,
    *,
    param: str,
    verified_goals: bool = False,
) -> Policy | Verified:
    """Return the measured policy that reaches a goal; a verified one only if `verified_goals`.

    `verified` returns the measured points of verified policies, and is called only if needed.
    Requests that cannot be verified get the policy that comes nearest to the goal among those that
    choose once. A verified policy has the floor, as the points have it. Raises PolicyError if no
    policy reaches the goal.
    """
    point = goal_point(goal, manifest, verified, param=param, verified_goals=verified_goals)
    policy = manifest.with_floor(manifest.policy(point.policy, param=param))
    if isinstance(policy, Verified) and manifest.frontier:
        once = _find(goal, manifest.frontier, manifest, param=param, is_nearest=True)
        policy = replace(policy, otherwise=choose_once(parse_policy(once.policy)))
    return policy


def goal_point(
    goal: Goal,
    manifest: Manifest,
    verified: MeasuredPoints,
    *,
    param: str,
    verified_goals: bool = False,
) -> FrontierPoint:
    """Return the measured point that reaches a goal; a verified one only if `verified_goals`.

    `verified` returns the measured points of verified policies, and is called only if needed.
    Raises PolicyError if no point reaches the goal. If a verified point would, the error says so.
    """
    if verified_goals:
        return _find(goal, (*manifest.frontier, *verified()), manifest, param=param)
    try:
        return _find(goal, manifest.frontier, manifest, param=param)
    except PolicyError as exc:
        best_single = manifest.best_single_accuracy
        if isinstance(goal, WithinGoal) or not any(
            _margin(goal, point, best_single) >= 0 for point in verified()
        ):
            raise
        problem = (
            f"{exc.problem}; verified answers reach it: allow them for goals with the header "
            "x-switchcraft-verified-goals: true, router.verification.goals, or --verified-goals"
        )
        raise PolicyError(str(goal), problem, param=param) from exc


def _find(
    goal: Goal,
    points: Sequence[FrontierPoint],
    manifest: Manifest,
    *,
    param: str,
    is_nearest: bool = False,
) -> FrontierPoint:
    standard = manifest.named_rules.get(VERIFIED)
    best_single = manifest.best_single_accuracy
    return find_point(
        goal, points, best_single, param=param, is_nearest=is_nearest, standard=standard
    )


def resolve_policies(
    policies: Mapping[str, str],
    frontier: Sequence[FrontierPoint],
    best_single: Measure | None,
    verified: Sequence[FrontierPoint] | None = None,
    standard: str | None = None,
) -> dict[str, str]:
    """Return the rule of each policy: its own, or the one that comes nearest to its goal.

    `verified` are the measured points of verified policies, which `fast` never is, and `standard`
    is the rule of `verified` among them. Before they are measured, `verified` at that price stands
    for the goals of default policies. Raises PolicyError if a goal cannot be compared.
    """
    rules = {}
    for name, text in policies.items():
        goal = parse_goal(text, param=name)
        rules[name] = text
        if isinstance(goal, WithinGoal) and verified is None:
            rules[name] = VERIFIED
        elif goal is not None:
            points = frontier if name == FAST else (*frontier, *(verified or ()))
            point = find_point(
                goal, points, best_single, param=name, is_nearest=True, standard=standard
            )
            rules[name] = point.policy
    return rules


def reach_goals(manifest: Manifest, verified: Sequence[FrontierPoint]) -> Manifest:
    """Return a manifest whose policies have the measured rules that come nearest to their goals.

    `verified` are the measured points of verified policies; only these may be chosen.
    """
    if not (manifest.frontier and manifest.policy_goals):
        return manifest
    policies = resolve_policies(
        {**manifest.policies, **manifest.policy_goals},
        manifest.frontier,
        manifest.best_single_accuracy,
        verified,
        manifest.named_rules.get(VERIFIED),
    )
    return manifest.model_copy(update={"policies": policies})


def find_point(
    goal: Goal,
    frontier: Sequence[FrontierPoint],
    best_single: Measure | None,
    *,
    param: str,
    is_nearest: bool = False,
    standard: str | None = None,
) -> FrontierPoint:
    """Return the cheapest point that reaches an accuracy, or the most accurate within a budget.

    `best_single` is the accuracy of the best single model on the same queries, and `standard` the
    rule of `verified`. If no point reaches the goal, returns the nearest point (the cheapest of
    several) if `is_nearest` is set or the goal is `within`, and otherwise raises PolicyError.
    """
    if not frontier:
        problem = (
            "no rule was measured for these arms at these prices, because the artifact has no "
            "held-out predictions; use the name of a policy, theta=P or drift=P instead of a goal"
        )
        raise PolicyError(str(goal), problem, param=param)
    if isinstance(goal, BestSingleGoal) and best_single is None:
        problem = "the best single model was not measured; write a number, such as accuracy=0.87"
        raise PolicyError(str(goal), problem, param=param)
    if isinstance(goal, WithinGoal):
        assert best_single is not None  # noqa: S101 - for types
        goal, is_nearest = goal.at_least(best_single, frontier, standard), True
    if goal.uses_interval and any(point.versus_best is None for point in frontier):
        problem = f"the artifact was measured without intervals; omit {INTERVAL_SUFFIX}"
        raise PolicyError(str(goal), problem, param=param)
    margins = [_margin(goal, point, best_single) for point in frontier]
    reached = [point for point, margin in zip(frontier, margins, strict=True) if margin >= 0]
    if reached and isinstance(goal, BudgetGoal):
        return max(reached, key=lambda point: (point.accuracy.value, -point.cost_usd.value))
    if reached:
        return min(reached, key=_cost_then_accuracy)

    ordered = sorted(zip(margins, frontier, strict=True), key=lambda p: _cost_then_accuracy(p[1]))
    nearest = max(ordered, key=lambda pair: pair[0])[1]  # the cheapest of several
    if is_nearest:
        return nearest
    figure = _decisive_figure(goal, nearest, best_single)
    match goal:
        case AccuracyGoal():
            measured = f"{figure:.1%}"
        case BestSingleGoal():
            measured = f"{figure * 100:+.1f} points against the best single model"
        case BudgetGoal():
            measured = f"{figure * 1_000:.3f} USD per 1,000 requests"
    if goal.uses_interval:
        measured += " at the worse end of its 95% interval"
        measured += f"; omit {INTERVAL_SUFFIX} to compare the goal with the estimate"
    rule = nearest.policy
    problem = f"no rule was measured to reach this goal; the nearest, {rule}, reached {measured}"
    raise PolicyError(str(goal), problem, param=param)


def _margin(goal: _ComparedGoal, point: FrontierPoint, best_single: Measure | None) -> float:
    """Return by how much a point exceeds a goal; negative if it misses the goal."""
    figure = _decisive_figure(goal, point, best_single)
    match goal:
        case AccuracyGoal(at_least):
            return figure - at_least
        case BestSingleGoal(points):
            return figure - points / 100
        case BudgetGoal(usd_per_1k):
            return usd_per_1k / 1_000 - figure


def _decisive_figure(
    goal: _ComparedGoal, point: FrontierPoint, best_single: Measure | None
) -> float:
    """Return the number to compare with a goal: the estimate, or the worse end of its interval."""
    match goal:
        case AccuracyGoal():
            interval, estimate = point.accuracy_interval, point.accuracy.value
        case BudgetGoal():
            interval, estimate = point.cost_usd_interval, point.cost_usd.value
        case BestSingleGoal():
            versus = point.versus_best
            interval = versus.difference_interval if versus else None
            estimate = point.accuracy.value - (best_single.value if best_single else 0.0)
    if not goal.uses_interval or interval is None:
        return estimate
    return interval[1] if isinstance(goal, BudgetGoal) else interval[0]


def pareto_front(points: Sequence[P]) -> tuple[P, ...]:
    """Return the points that are more accurate than every cheaper point, by rising cost."""
    ordered = sorted(points, key=_cost_then_accuracy)
    front = ordered[:1]
    for point in ordered[1:]:
        if point.accuracy.value > front[-1].accuracy.value:
            front.append(point)
    return tuple(front)


def _cost_then_accuracy(point: MeasuredPoint) -> tuple[float, float]:
    return point.cost_usd.value, -point.accuracy.value
