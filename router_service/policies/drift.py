"""The policy `drift`: the cheapest arm near the most probable one (paper, appendix)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from router_service.core.reasons import Reason
from router_service.policies.base import (
    DRIFT_TOLERANCE,
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

DRIFTS = (
    *(0.3, 0.26, 0.23, 0.2, 0.18, 0.16, 0.14, 0.12, 0.1, 0.09, 0.08, 0.07, 0.06, 0.05, 0.04),
    *(0.03, 0.025, 0.02, 0.015, 0.01, 0.0075, 0.005, 0.003, 0.002, 0.001),
)
"""The values that are measured for every pool, in smaller steps where a small step changes many
choices."""


@dataclass(frozen=True, slots=True)
class Drift(FloorPolicy):
    """Policy: the cheapest arm within delta of the highest probability."""

    delta: float

    name: ClassVar[str] = "drift"
    form: ClassVar[str] = "drift=P"
    domain: ClassVar[str] = SHARE_DOMAIN
    example: ClassVar[str] = "drift=0.1"
    reasons: ClassVar[tuple[Reason, ...]] = (Reason.DRIFT,)
    control: ClassVar[Control] = Control(
        rule="drift",
        kind="once",
        title="Cheapest within a margin of the best",
        legend="drift: the cheapest model within a margin of the most probable one",
        explanation="the cheapest model whose probability is within {value} points of the best",
        parameter="Margin",
        unit=Unit.POINTS,
        most=1.0,
        larger_is_cheaper=True,
    )

    @classmethod
    def parse(cls, text: str, *, param: str) -> Self:
        """Read `drift=0.1`."""
        return cls(read_share(text, param=param))

    def __str__(self) -> str:
        return f"drift={self.delta:g}"

    def floor(self, highest: Probability) -> Probability:
        """Return the highest probability minus delta."""
        return highest - self.delta - DRIFT_TOLERANCE

    def least_probability(self, probabilities: Sequence[float]) -> float:
        """Return the highest probability minus delta."""
        return max(probabilities) - self.delta

    def explain(self, choice: ChoiceFacts) -> str:
        """Return why an arm was chosen."""
        if choice.reason != Reason.DRIFT:
            return Policy.explain(self, choice)
        points = round(self.delta * 100, 2)
        margin = f"{points:g} point{'' if points == 1 else 's'}"
        if choice.is_most_probable:
            return f"is the highest probability, and no arm within {margin} of it is cheaper"
        return f"is within {margin} of {choice.best} and costs {choice.price}"

    @classmethod
    def measured_values(cls, costs_usd: Floats) -> tuple[Self, ...]:
        """Return the measured margins."""
        return tuple(cls(delta) for delta in DRIFTS)
