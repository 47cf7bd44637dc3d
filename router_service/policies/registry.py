"""The registry of policies: one line for each."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from router_service.core.errors import PolicyError
from router_service.core.reasons import Reason
from router_service.policies.base import Control, Policy
from router_service.policies.drift import Drift
from router_service.policies.names import GOALS
from router_service.policies.threshold import Threshold
from router_service.policies.utility import Utility
from router_service.policies.verified import Verified

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
    problem = f"did you mean {similar[0]}={number}?" if similar else f"write {_all_forms()}"
    raise PolicyError(text, problem, param=param)


def _all_forms() -> str:
    """Return how all policies are written, as in `theta=P or drift=P with P from 0 to 1`."""
    forms: dict[str, list[str]] = {}
    for policy in POLICIES.values():
        forms.setdefault(policy.domain, []).append(policy.form)
    return ", or ".join(f"{' or '.join(each)} with {domain}" for domain, each in forms.items())


def choose_once(policy: Policy | Verified, *, param: str = "model") -> Policy:
    """Return a policy that chooses one arm before any answer; raises PolicyError for others."""
    if isinstance(policy, Verified):
        problem = "it needs the answers of models, which only a gateway gets; use another policy"
        raise PolicyError(str(policy), problem, param=param)
    return policy
