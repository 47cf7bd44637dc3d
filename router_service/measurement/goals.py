"""Goals: find the rule that was measured to reach the accuracy or cost that a user wants.

If a goal ends in `@95`, the worse end of the 95% interval must reach it instead of the estimate.
The interval is two-sided, so its worse end is a one-sided bound of 97.5%. The interval accounts for
the random choice of queries, but not for the rule being picked on the same queries.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, TypeVar

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
class Goal:
    """What a rule should have been measured to reach, at the least cost or with most accuracy."""

    kind: Literal["accuracy", "best", "usd_per_1k", "within"]
    """What `number` is: the least share of correct answers; the points by which the accuracy may
    exceed that of the best single model; the largest average cost; or the goal of default policies,
    the points below the best single model, but with no less accuracy than `verified`. If no rule
    reaches `within`, the nearest one counts."""
    number: float = 0.0
    uses_interval: bool = False

    def __str__(self) -> str:
        end = INTERVAL_SUFFIX if self.uses_interval else ""
        if self.kind == "best":
            points = f"{self.number:+g}" if self.number else ""
            return f"accuracy=best{points}{end}"
        return f"{self.kind}={self.number:g}{end}"

    def figure(self, point: FrontierPoint, best_single: Measure | None) -> float:
        """Return the number of a point to compare: the estimate, or its interval's worse end."""
        if self.kind == "accuracy":
            interval, estimate = point.accuracy_interval, point.accuracy.value
        elif self.kind == "usd_per_1k":
            interval, estimate = point.cost_usd_interval, point.cost_usd.value
        else:
            versus = point.versus_best
            interval = versus.difference_interval if versus else None
            estimate = point.accuracy.value - (best_single.value if best_single else 0.0)
        if not self.uses_interval or interval is None:
            return estimate
        return interval[self.kind == "usd_per_1k"]

    def margin(self, point: FrontierPoint, best_single: Measure | None) -> float:
        """Return by how much a point exceeds the goal; negative if it misses the goal."""
        figure = self.figure(point, best_single)
        if self.kind == "usd_per_1k":
            return self.number / 1_000 - figure
        return figure - (self.number if self.kind == "accuracy" else self.number / 100)


class MeasuredPoint(Protocol):
    """Anything with a measured accuracy and cost."""

    @property
    def accuracy(self) -> Measure:
        """Share of correct answers."""

    @property
    def cost_usd(self) -> Measure:
        """USD per query."""


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

    def refuse(problem: str) -> PolicyError:
        return PolicyError(text, problem, param=param)

    if at and at + level != INTERVAL_SUFFIX:
        problem = f"intervals are measured at 95%: write {INTERVAL_SUFFIX}, not {at + level}"
        raise refuse(problem)
    best = _BEST.fullmatch(wanted)
    if kind == "accuracy" and best is not None:
        return Goal("best", float(best["points"] or 0), bool(at))
    try:
        number = float(wanted)
    except ValueError as exc:
        raise refuse(f"{wanted!r} is not a number") from exc
    if not 0.0 <= number < float("inf"):  # false for NaN too
        raise refuse(f"the value must be finite and at least 0, not {wanted}")
    if kind == "accuracy" and number > 1:
        problem = f"an accuracy is between 0 and 1, not {wanted}"
        if number <= 100:
            problem += f"; for {wanted}%, write accuracy={number / 100:g}{at}{level}"
        raise refuse(problem)
    if kind == WITHIN and at:
        raise refuse(f"this goal compares estimates; omit {INTERVAL_SUFFIX}")
    return Goal(kind, number, bool(at))


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
        if goal.kind == WITHIN or not any(
            goal.margin(point, best_single) >= 0 for point in verified()
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
        if goal is not None and goal.kind == WITHIN and verified is None:
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
    problem = ""
    if not frontier:
        problem = (
            "no rule was measured for these arms at these prices, because the artifact has no "
            "held-out predictions; use the name of a policy, theta=P or drift=P instead of a goal"
        )
    elif goal.kind == "best" and best_single is None:
        problem = "the best single model was not measured; write a number, such as accuracy=0.87"
    elif goal.uses_interval and any(point.versus_best is None for point in frontier):
        problem = f"the artifact was measured without intervals; omit {INTERVAL_SUFFIX}"
    if problem:
        raise PolicyError(str(goal), problem, param=param)
    if goal.kind == WITHIN:
        assert best_single is not None  # noqa: S101 - for types
        known = (point.accuracy.value for point in frontier if point.policy == standard)
        least = max(best_single.value - goal.number / 100, *known, 0.0)
        goal, is_nearest = Goal("accuracy", least), True
    margins = [goal.margin(point, best_single) for point in frontier]
    reached = [point for point, margin in zip(frontier, margins, strict=True) if margin >= 0]
    if reached and goal.kind == "usd_per_1k":
        return max(reached, key=lambda point: (point.accuracy.value, -point.cost_usd.value))
    if reached:
        return min(reached, key=_cost_then_accuracy)

    ordered = sorted(zip(margins, frontier, strict=True), key=lambda p: _cost_then_accuracy(p[1]))
    nearest = max(ordered, key=lambda pair: pair[0])[1]  # the cheapest of several
    if is_nearest:
        return nearest
    figure = goal.figure(nearest, best_single)
    measured = f"{figure:.1%}"
    if goal.kind == "best":
        measured = f"{figure * 100:+.1f} points against the best single model"
    elif goal.kind == "usd_per_1k":
        measured = f"{figure * 1_000:.3f} USD per 1,000 requests"
    if goal.uses_interval:
        measured += " at the worse end of its 95% interval"
        measured += f"; omit {INTERVAL_SUFFIX} to compare the goal with the estimate"
    rule = nearest.policy
    problem = f"no rule was measured to reach this goal; the nearest, {rule}, reached {measured}"
    raise PolicyError(str(goal), problem, param=param)


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
