"""The measured operating points of a pool: what each policy costs, and how accurate it is.

A budget needs them to find the most accurate policy that it can pay for, and to say what a cheaper
policy costs in accuracy.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from router_service.artifact import FrontierPoint, Manifest
from router_service.measurement.goals import pareto_front
from router_service.policies.registry import DEFAULT, nearest_rule
from router_service.policies.threshold import Threshold
from router_service.policies.verified import is_verified
from router_service.predictor.familiarity import BEST

_LABEL = re.compile(r"(?P<name>.*) \((?P<rule>[^()]*)\)")


@dataclass(frozen=True, eq=False)
class OperatingPoints:
    """Measured points of policies, with the names by which requests ask for them."""

    measured: tuple[FrontierPoint, ...]
    """The points of policies that choose once, and of those that verify answers."""
    rules: Mapping[str, str] = field(default_factory=dict)
    """The rule of each policy's name; `default` is the policy that applies without a name."""
    best_single: FrontierPoint | None = None
    """The best single model: it answers unfamiliar requests that are not verified."""

    @classmethod
    def of(
        cls, manifest: Manifest, verified: Sequence[FrontierPoint], default_rule: str
    ) -> OperatingPoints:
        """Return the points of a manifest and those of its verified policies.

        `default_rule` is the policy of requests that name none.
        """
        accuracy = manifest.metrics.get("best_single_accuracy")
        cost_usd = manifest.metrics.get("best_single_cost_usd")
        best_single = None
        if accuracy is not None and cost_usd is not None:
            best_single = FrontierPoint(policy=BEST, accuracy=accuracy, cost_usd=cost_usd)
        rules = {**manifest.named_rules, DEFAULT: default_rule}
        return cls((*manifest.frontier, *verified), rules, best_single)

    @cached_property
    def front(self) -> tuple[FrontierPoint, ...]:
        """The points that are more accurate than every cheaper point, by rising cost."""
        return pareto_front(self.measured)

    @cached_property
    def front_once(self) -> tuple[FrontierPoint, ...]:
        """The same among the policies that choose a model before any answer."""
        return pareto_front([each for each in self.measured if not is_verified(each.policy)])

    def find(self, policy: str) -> FrontierPoint | None:
        """Return the point of a policy's name or rule, or the nearest one of the same kind.

        Returns None if no rule of this kind was measured.
        """
        if policy == BEST:
            return self.best_single
        rule = self.rules.get(policy, policy)
        if rule in self._by_rule:
            return self._by_rule[rule]
        by_cost = sorted(self.measured, key=lambda each: each.cost_usd.value)
        nearest = nearest_rule(rule, (each.policy for each in by_cost))
        return None if nearest is None else self._by_rule[nearest]

    def find_label(self, label: str) -> tuple[FrontierPoint | None, FrontierPoint | None]:
        """Return the points of a policy as records show it: what applied, and what was asked for.

        A label is a rule, or the name by which it was asked for and the rule that applied, as in
        `quality (verified=0.0265)`. The rule of a goal is the one that applied.
        """
        match = _LABEL.fullmatch(label)
        if match is None:
            point = self.find(label)
            return point, point
        applied = self.find(match["rule"])
        if match["name"] == BEST and match["rule"] == str(Threshold(1.0)):
            applied = self.best_single
        return applied, self.find(match["name"]) or applied

    def most_accurate(
        self, max_cost_usd: float, *, verified: bool = True, policies: Collection[str] | None = None
    ) -> FrontierPoint | None:
        """Return the most accurate point that costs at most so much, or else the cheapest point.

        Points of verified policies count only if `verified` is set. `policies` are the names and
        rules that may be used, such as `economy` or `drift=*`; None allows all. Returns None if no
        such policy was measured.
        """
        if policies is None:
            front = self.front if verified else self.front_once
        else:
            found: list[FrontierPoint] = []
            for policy in policies:
                if policy.endswith("=*"):  # all rules of this kind
                    kind = policy.removesuffix("*")
                    known = (each for each in self.measured if each.policy.startswith(kind))
                    found += (each for each in known if verified or not is_verified(each.policy))
                    continue
                rule, point = self.rules.get(policy, policy), self.find(policy)
                if point is not None and (verified or not is_verified(rule)):
                    # The figures may be those of a neighbour, but the rule is the allowed one.
                    found.append(point.model_copy(update={"policy": rule}))
            front = pareto_front(found)
        affordable = [point for point in front if point.cost_usd.value <= max_cost_usd]
        return affordable[-1] if affordable else next(iter(front), None)

    @cached_property
    def _by_rule(self) -> dict[str, FrontierPoint]:
        return {point.policy: point for point in self.measured}
