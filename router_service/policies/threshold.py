"""The policy `theta`: the cheapest arm above a threshold (paper, section 3.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from router_service.core.reasons import Reason
from router_service.policies.base import (
    SHARE_DOMAIN,
    ChoiceFacts,
    Control,
    Floats,
    FloorPolicy,
    Policy,
    Probability,
    Unit,
    read_share,
)

THETAS = (
    *(0.3, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.725, 0.75, 0.775, 0.8, 0.82, 0.84, 0.86, 0.88),
    *(0.9, 0.91, 0.92, 0.93, 0.94, 0.95, 0.96, 0.97, 0.98),
)
"""The thresholds that are measured for every pool, in smaller steps where a small step changes many
choices."""


@dataclass(frozen=True, slots=True)
class Threshold(FloorPolicy):
    """Policy: the cheapest arm with probability >= theta, or else the most probable arm."""

    theta: float

    name: ClassVar[str] = "theta"
    form: ClassVar[str] = "theta=P"
    domain: ClassVar[str] = SHARE_DOMAIN
    example: ClassVar[str] = "theta=0.8"
    reasons: ClassVar[tuple[Reason, ...]] = (Reason.THRESHOLD, Reason.ARGMAX)
    control: ClassVar[Control] = Control(
        rule="theta",
        kind="once",
        title="Cheapest above a threshold",
        legend="theta: the cheapest model above a threshold",
        explanation="the cheapest model with a probability of at least {value}",
        parameter="Threshold",
        unit=Unit.SHARE,
        most=1.0,
    )

    @classmethod
    def parse(cls, text: str, *, param: str) -> Self:
        """Read `theta=0.5`."""
        return cls(read_share(text, param=param))

    def __str__(self) -> str:
        return f"theta={self.theta:g}"

    def floor(self, highest: Probability) -> Probability | float:
        """Return the threshold."""
        return self.theta

    def least_probability(self, probabilities: Sequence[float]) -> float:
        """Return the threshold."""
        return self.theta

    def explain(self, choice: ChoiceFacts) -> str:
        """Return why an arm was chosen."""
        match choice.reason:
            case Reason.ARGMAX:
                return f"is the highest probability; no arm reaches {self.theta:.0%}"
            case Reason.THRESHOLD:
                return f"reaches {self.theta:.0%}, and no cheaper model does"
        return Policy.explain(self, choice)

    @classmethod
    def measured_values(cls, costs_usd: Floats) -> tuple[Self, ...]:
        """Return the measured thresholds."""
        return tuple(cls(theta) for theta in THETAS)
