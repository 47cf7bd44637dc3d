"""The policy `verified`: ask arms step by step, until a better answer is not worth its cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from decimal import Decimal
from typing import ClassVar, Self

from router_service.core.decision_record import StopReason, VerificationStop
from router_service.core.reasons import Reason
from router_service.core.values import request_value
from router_service.policies.base import (
    PRICE_DOMAIN,
    Control,
    Policy,
    Rule,
    Unit,
    read_price,
)

VERIFIED = "verified"
"""Name of the policy that verifies answers, at the price of the artifact's operating point."""

PRICES = (
    *(0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 4.0),
    *(5.0, 6.0, 8.0, 12.0, 16.0, 20.0, 25.0, 30.0, 40.0),
)
"""Prices of a correct answer that are measured, in units of the best single model's mean cost."""


@request_value(frozen=True, slots=True)
class Verified(Rule):
    """Policy: ask arms step by step, until a better answer is not worth the cost of another one.

    It is no `Policy`, because it needs the answers of arms in addition to the router's
    probabilities. `Router.next_step` applies it.
    """

    price_usd: float
    """What one more correct answer is worth."""
    otherwise: Policy | None = None
    """The policy for requests that cannot be verified; None is `Manifest.choose_once`."""
    floor: float = field(default=0.0, compare=False)
    """Probability below which no candidate is accepted while another arm may be asked. It is no
    part of the rule that a policy's text and figures name."""

    name: ClassVar[str] = VERIFIED
    form: ClassVar[str] = "verified=PRICE"
    domain: ClassVar[str] = PRICE_DOMAIN
    example: ClassVar[str] = VERIFIED
    reasons: ClassVar[tuple[Reason, ...]] = (Reason.VERIFIED, Reason.TEXT, Reason.UNGROUNDED)
    control: ClassVar[Control] = Control(
        rule=VERIFIED,
        kind="verified",
        title="Ask more models if it pays",
        legend="verified answers: more models are asked if it pays",
        explanation="asks more models if that pays, at {value} for one more correct answer",
        parameter="Worth of one more correct answer",
        unit=Unit.USD,
    )

    @classmethod
    def parse(cls, text: str, *, param: str) -> Self:
        """Read `verified=0.002`; `Manifest.policy` reads `verified` alone."""
        return cls(read_price(text, param=param))

    def __str__(self) -> str:
        return f"verified={self.price_usd:g}"


def is_verified(rule: str) -> bool:
    """Return whether a rule verifies answers: `verified` or `verified=PRICE`."""
    return rule.partition("=")[0].strip() == VERIFIED


def explain_candidate(
    arm: str,
    reason: str,
    count: int,
    p_correct: float | None,
    ungrounded: Sequence[str],
    *,
    stop: str,
) -> str:
    """Return why the answer of `arm` was accepted among `count` candidates.

    `ungrounded` are its invented arguments of risky tools. `stop` is the sentence of
    `explain_stop`, which follows if the answer was verified.
    """
    if ungrounded:
        values = "the value of " if len(ungrounded) == 1 else "the values of "
        return (
            f"{arm}: delivered unverified, because nobody said {values}{', '.join(ungrounded)}, and"
            f" no other model confirmed {'it' if len(ungrounded) == 1 else 'them'}."
        )
    if reason == Reason.TEXT:
        asked = "the first model that was asked" if count == 1 else "the first model that answered"
        return f"{arm}: {asked}; the router expected text, which is delivered without verification."
    if count == 1:
        likely = "" if p_correct is None else f" {p_correct:.0%}"
        why = f"{arm}: its answer is{likely} likely to be correct, by the verifier's estimate."
    else:
        likely = "" if p_correct is None else f" ({p_correct:.0%})"
        why = (
            f"{arm}: the likeliest of {count} models' answers{likely}, by the verifier's estimate."
        )
    return f"{why} {stop}".rstrip()


_LIMITS = {
    StopReason.MAX_CANDIDATES: "the limit on models was reached (max_candidates)",
    StopReason.MAX_COST: "the limit on cost leaves no room for it (max_cost_usd)",
    StopReason.MAX_ADDED_LATENCY: "the limit on time leaves none for it (max_added_latency_s)",
    StopReason.DEADLINE: "the request's deadline left no time for it",
    StopReason.SHUTDOWN: "the gateway is shutting down",
}


def explain_stop(
    stop: VerificationStop | None,
    rule: str,
    labels: Mapping[str, str],
) -> str:
    """Return why no further model was asked, in one sentence; empty if there is nothing to say.

    `rule` is the one that decided, such as `verified=0.002`. `labels` has what to write for an arm.
    """
    if stop is None or stop.reason is StopReason.SURE:
        return ""
    if stop.reason is StopReason.NO_MODEL_LEFT:
        return "No other model was left to ask."
    limit = _LIMITS.get(stop.reason)
    if stop.arm is None or stop.expected_gain is None or stop.expected_cost_usd is None:
        return f"No other model was asked: {limit}."
    gain = f"add {stop.expected_gain * 100:.1f} points" if stop.expected_gain > 0 else "add nothing"
    asking = (
        f"Asking {labels.get(stop.arm, stop.arm)} was expected to {gain} for"
        f" {Decimal(f'{stop.expected_cost_usd:.2g}'):f} USD"
    )
    if limit is not None:
        return f"{asking}, but {limit}."
    price = rule.partition("=")[2]
    return f"{asking}, which is not worth it at {price} USD for a correct answer."
