"""Verification: candidate answers, and what to do with them next."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from router_service.core.answers import ParsedAnswer
from router_service.core.selection import Verified


@dataclass(frozen=True, slots=True)
class Candidate:
    """A complete answer of an arm, as the verifier sees it."""

    arm: str
    answer: ParsedAnswer | None
    """None if the answer could not be read, because it is too large."""


@dataclass(frozen=True, slots=True)
class VerificationLimits:
    """Limits on the effort to verify one answer."""

    max_candidates: int = 3
    """Largest number of arms that are asked, including those that fail."""
    max_cost_usd: float = math.inf
    """Largest cost of all candidates together."""
    max_added_latency_s: float = math.inf
    """Longest time from the first complete candidate until one is accepted."""


NO_LIMITS = VerificationLimits()


@dataclass(frozen=True, slots=True)
class VerificationState:
    """State of one request's verification: its rules, and the arms that were asked so far."""

    policy: Verified
    arms: Collection[str]
    """Arms that may be asked, unless they were asked before."""
    candidates: Sequence[Candidate] = ()
    failed: Collection[str] = ()
    """Arms that were asked and gave no answer."""
    limits: VerificationLimits = NO_LIMITS
    elapsed_s: float = 0.0
    """Time since the first candidate was complete."""


@dataclass(frozen=True, slots=True)
class Step:
    """Decision about the candidates so far: accept one of them, or ask further arms.

    If there are no candidates and the limits exclude every arm, it does neither.
    """

    accept: str | None
    """The arm whose answer to deliver, or None."""
    ask: tuple[str, ...]
    """Arms to ask next, in parallel if there are several; empty if `accept` is set."""
    p_correct: Mapping[str, float]
    """Probability that a candidate is correct, by its arm, for all candidates so far."""
    expected_gain: float
    """Expected increase of the probability of a correct answer if the arms are asked."""
