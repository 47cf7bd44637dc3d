"""Names of policies: the name or goal by which a rule was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

from router_service.core.decision_record import label_policy
from router_service.core.errors import PolicyError
from router_service.core.values import request_value
from router_service.policies.base import Policy
from router_service.policies.verified import VERIFIED, Verified, is_verified

DEFAULT = "default"
"""Name of the policy of requests that select none."""

FAST = "fast"
"""Name of the policy that chooses once in an artifact whose default policy verifies answers."""

WITHIN = "within"
"""Kind of the goal of default policies, as in `within=0.5`; a verified policy may reach it."""

GOALS = ("accuracy", WITHIN, "usd_per_1k")
"""Kinds of goals, as in `accuracy=best`; `measurement.goals` finds the rule that reaches a goal."""

AnyPolicy_co = TypeVar("AnyPolicy_co", bound=Policy | Verified, covariant=True)


@request_value(frozen=True, slots=True)
class NamedPolicy(Generic[AnyPolicy_co]):
    """A policy, and the name or goal by which it was asked for."""

    rule: AnyPolicy_co
    name: str | None = None
    """A name such as `economy`, a goal such as `accuracy=best`, or None if neither was used."""

    def __str__(self) -> str:
        return label_policy(str(self.rule), self.name)

    @property
    def kind(self) -> str:
        """The name, or the kind of the goal or rule; clients choose their numbers freely."""
        return (self.name or str(self.rule)).partition("=")[0]


def is_within(text: str) -> bool:
    """Return whether a text is a goal such as `within=0.5`."""
    return text.partition("=")[0].strip() == WITHIN


def published_names(rules: Mapping[str, str]) -> dict[str, str]:
    """Return the name that people read for each rule; `rules` are rules by name.

    Several names may have one rule. The first of them counts, `default` only if it is the only one.
    """
    names: dict[str, str] = {}
    for name, rule in rules.items():
        if names.get(rule, DEFAULT) == DEFAULT:
            names[rule] = name
    return names


def choosing_name(policies: Mapping[str, str]) -> str:
    """Return the name of the policy for requests whose answers are not verified.

    It is the default policy if that chooses once, or else `fast`. `policies` are rules or goals by
    name. Raises PolicyError if there is no such policy.
    """
    if DEFAULT not in policies:
        raise PolicyError(DEFAULT, "one policy must have this name", param="policies")
    if not (is_verified(policies[DEFAULT]) or is_within(policies[DEFAULT])):
        return DEFAULT
    if is_verified(policies.get(FAST, VERIFIED)):
        problem = (
            f"as the default, it needs a policy named {FAST!r} that chooses once, for requests that"
            " cannot be verified"
        )
        raise PolicyError(policies[DEFAULT], problem, param="policies")
    return FAST
