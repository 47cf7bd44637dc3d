"""Probabilities + costs + policy -> one arm, with the reason (paper, section 3.3)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from router_service.core.errors import PolicyError


class Reason(StrEnum):
    """Why an arm was chosen."""

    THRESHOLD = "threshold"
    """The cheapest of the arms predicted correct."""
    DRIFT = "drift"
    """The cheapest of the arms within delta of the most probable one."""
    ARGMAX = "argmax"
    """No arm was predicted correct: the most probable one."""
    UNREAD = "unread"
    """Part of the request could not be read: the most probable arm for what could."""
    EXPLORED = "explored"
    """Another arm than the policy's was drawn, so that something is learned of it."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """The cheapest arm with probability >= theta; the most probable where none is."""

    theta: float

    def __str__(self) -> str:
        return f"theta={self.theta:g}"


@dataclass(frozen=True, slots=True)
class Drift:
    """The cheapest arm within delta of the highest probability (appendix on thresholding)."""

    delta: float

    def __str__(self) -> str:
        return f"drift={self.delta:g}"


Policy = Threshold | Drift

_RULES: dict[str, type[Policy]] = {"theta": Threshold, "drift": Drift}


@dataclass(frozen=True, slots=True)
class Selection:
    """The chosen arm's index, and why."""

    arm: int
    reason: Reason


def parse_policy(text: str, *, param: str = "model") -> Policy:
    """Read `theta=0.5` or `drift=0.1`; raises PolicyError, naming `param` as where it stood."""
    rule, _, number = text.partition("=")
    if rule.strip() not in _RULES:
        raise PolicyError(text, "write theta=P or drift=P with P from 0 to 1", param=param)
    try:
        value = float(number)
    except ValueError as exc:
        raise PolicyError(text, f"{number!r} is not a number", param=param) from exc
    if not 0.0 <= value <= 1.0:  # false for NaN too
        raise PolicyError(text, f"{number} is outside 0 to 1", param=param)
    return _RULES[rule.strip()](value)


def select(probabilities: Sequence[float], costs_usd: Sequence[float], policy: Policy) -> Selection:
    """Choose among arms given in one order: probabilities and expected costs, (arms,) each.

    Equal costs are decided by the higher probability, then by the earlier arm.
    """
    best = most_probable(probabilities, costs_usd)
    floor = _floor(probabilities, policy)
    passing = [arm for arm, p in enumerate(probabilities) if p >= floor]
    if not passing:
        return Selection(best, Reason.ARGMAX)
    cheapest = min(passing, key=lambda arm: (costs_usd[arm], -probabilities[arm], arm))
    return Selection(cheapest, Reason.DRIFT if isinstance(policy, Drift) else Reason.THRESHOLD)


def _floor(probabilities: Sequence[float], policy: Policy) -> float:
    # 1e-9: p_max - delta in floats must not cut an arm that is exactly delta away.
    tolerance = 1e-9 if isinstance(policy, Drift) else 0.0
    return least_probability(probabilities, policy) - tolerance


def least_probability(probabilities: Sequence[float], policy: Policy) -> float:
    """Return what an arm's probability must reach under a policy."""
    match policy:
        case Threshold(theta):
            return theta
        case Drift(delta):
            return max(probabilities) - delta


def ranking(
    probabilities: Sequence[float], costs_usd: Sequence[float], policy: Policy | None
) -> tuple[int, ...]:
    """Return the arms in the order in which they are tried: the choice, then that of the rest.

    Each is what `select` chooses of those that are left, or without a policy the most probable.
    """
    likely = sorted(
        range(len(probabilities)), key=lambda arm: (-probabilities[arm], costs_usd[arm], arm)
    )
    match policy:
        case None:
            return tuple(likely)
        case Threshold(theta):
            passing = [arm for arm in likely if probabilities[arm] >= theta]
            passing.sort(key=lambda arm: costs_usd[arm])
            return (*passing, *likely[len(passing) :])
        case Drift():
            return tuple(_by_drift(probabilities, costs_usd, policy, likely))


def _by_drift(
    probabilities: Sequence[float], costs_usd: Sequence[float], policy: Drift, likely: list[int]
) -> Iterator[int]:
    """Yield the cheapest within delta of the most probable again and again; empties `likely`."""
    while likely:
        chosen = likely[0]
        floor = _floor((probabilities[chosen],), policy)
        for arm in likely:
            if probabilities[arm] < floor:
                break
            if costs_usd[arm] < costs_usd[chosen]:
                chosen = arm
        likely.remove(chosen)
        yield chosen


@dataclass(frozen=True, slots=True)
class Draw:
    """The arm that was drawn, and the probability with which it was."""

    arm: int
    propensity: float


def explore(chosen: int, arms: int, share: float, draw: float) -> Draw:
    """Draw any of `arms` arms, each as likely, with probability `share`; else take the chosen one.

    `draw` is uniform in [0, 1). The propensities of all arms add up to 1 (epsilon-greedy).
    """
    # Below the share the draw is uniform in [0, share): it says which arm, too.
    arm = min(int(draw / share * arms), arms - 1) if draw < share else chosen
    return Draw(arm, share / arms + (1 - share) * (arm == chosen))


def most_probable(probabilities: Sequence[float], costs_usd: Sequence[float]) -> int:
    """Return the arm with the highest probability; of equal ones the cheapest, then the first.

    Raises ValueError where there is no arm, or a probability is not a number.
    """
    if not probabilities or any(math.isnan(p) for p in probabilities):
        raise ValueError(f"not a probability for every arm: {list(probabilities)}")
    return min(
        range(len(probabilities)), key=lambda arm: (-probabilities[arm], costs_usd[arm], arm)
    )
