"""The registry of policies, one line for each, and the names by which rules are asked for."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Generic, TypeVar

from router_service.core.decision_record import label_policy
from router_service.core.errors import PolicyError
from router_service.core.reasons import Reason
from router_service.core.values import request_value
from router_service.policies.base import Control, Policy
from router_service.policies.drift import Drift
from router_service.policies.threshold import Threshold
from router_service.policies.utility import Utility
from router_service.policies.verified import VERIFIED, Verified, is_verified

DEFAULT = "default"
"""Name of the policy of requests that select none."""

FAST = "fast"
"""Name of the policy that chooses once in an artifact whose default policy verifies answers."""

WITHIN = "within"
"""Kind of the goal of default policies, as in `within=0.5`; a verified policy may reach it."""

GOALS = ("accuracy", WITHIN, "usd_per_1k")
"""Kinds of goals, as in `accuracy=best`; `measurement.goals` finds the rule that reaches a goal."""

POLICIES: dict[str, type[Policy | Verified]] = {
    Threshold.name: Threshold,
    Drift.name: Drift,
    Utility.name: Utility,
    Verified.name: Verified,
}
"""The policies by name, in the order in which people see them."""


def choosing_policies() -> Iterator[type[Policy]]:
    """Yield the policies that choose an arm before any answer."""
    for policy in POLICIES.values():
        if issubclass(policy, Policy):
            yield policy


def choosing_reasons() -> tuple[Reason, ...]:
    """Return the reasons that these policies may give, each once."""
    reasons = (reason for policy in choosing_policies() for reason in policy.reasons)
    return tuple(dict.fromkeys(reasons))


def controls() -> tuple[Control, ...]:
    """Return what people see of each policy."""
    return tuple(policy.control for policy in POLICIES.values())


def parse_policy(text: str, *, param: str = "model") -> Policy | Verified:
    """Read `theta=0.5`, `drift=0.1`, `utility=0.002` or `verified=0.002`.

    Raises PolicyError; `param` is the field of the request that holds the text.
    """
    name, _, number = (part.strip() for part in text.partition("="))
    kind = POLICIES.get(name)
    if kind is not None:
        return kind.parse(text, param=param)
    similar = difflib.get_close_matches(name, (*POLICIES, *GOALS), n=1)
    if similar:
        raise PolicyError(text, f"did you mean {similar[0]}={number}?", param=param)
    forms: dict[str, list[str]] = {}  # by domain
    for policy in POLICIES.values():
        forms.setdefault(policy.domain, []).append(policy.form)
    known = (f"{' or '.join(each)} with {domain}" for domain, each in forms.items())
    problem = f"write {', or '.join(known)}"
    raise PolicyError(text, problem, param=param)


def nearest_rule(rule: str, measured: Iterable[str]) -> str | None:
    """Return the measured rule of the same kind whose number is nearest; None without one."""
    kind, _, number = rule.partition("=")
    try:
        wanted = float(number)
    except ValueError:
        return None
    alike = [each for each in measured if each.partition("=")[0] == kind]
    return min(alike, key=lambda each: abs(float(each.partition("=")[2]) - wanted), default=None)


def choose_once(policy: Policy | Verified, *, param: str = "model") -> Policy:
    """Return a policy that chooses one arm before any answer; raises PolicyError for others."""
    if isinstance(policy, Verified):
        problem = "it needs the answers of models, which only a gateway gets; use another policy"
        raise PolicyError(str(policy), problem, param=param)
    return policy


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
