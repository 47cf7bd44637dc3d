"""The policy `utility`: the arm that is the best value at a price of a correct answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from router_service.core.reasons import Reason
from router_service.policies.base import (
    LEAST_PRICE_USD,
    PRICE_DIGITS,
    PRICE_DOMAIN,
    ChoiceFacts,
    Columns,
    Control,
    Floats,
    Policy,
    Selection,
    Unit,
    by_probability,
    check_rows,
    most_probable,
    read_price,
)

SLOPES = tuple(np.geomspace(5.0, 0.001, 25).tolist())
"""Probability that must make up for the difference in cost between the least and the most expensive
arm. The price of `utility` is this difference divided by the probability."""


@dataclass(frozen=True, slots=True)
class Utility(Policy):
    """Policy: the arm with the highest probability minus its expected cost divided by a price."""

    price_usd: float
    """What one more correct answer is worth."""

    name: ClassVar[str] = "utility"
    form: ClassVar[str] = "utility=PRICE"
    domain: ClassVar[str] = PRICE_DOMAIN
    example: ClassVar[str] = "utility=0.002"
    reasons: ClassVar[tuple[Reason, ...]] = (Reason.UTILITY,)
    control: ClassVar[Control] = Control(
        rule="utility",
        kind="once",
        title="Best value for the price",
        legend="utility: the best probability for its cost",
        explanation="the best value, at {value} for one more correct answer",
        parameter="Worth of one more correct answer",
        unit=Unit.USD,
    )

    @classmethod
    def parse(cls, text: str, *, param: str) -> Self:
        """Read `utility=0.002`."""
        return cls(read_price(text, param=param))

    def __str__(self) -> str:
        return f"utility={self.price_usd:g}"

    def choose(self, probabilities: Sequence[float], costs_usd: Sequence[float]) -> Selection:
        """Choose the arm with the highest value."""
        most_probable(probabilities, costs_usd)  # refuses missing probabilities
        return Selection(self.ranking(probabilities, costs_usd)[0], Reason.UTILITY)

    def choose_rows(self, probabilities: Floats, costs_usd: Floats) -> Columns:
        """Return the arm that `choose` chooses for each row."""
        check_rows(probabilities)
        value = probabilities - costs_usd / max(self.price_usd, LEAST_PRICE_USD)
        return np.lexsort((costs_usd, -probabilities, -value))[:, 0]

    def ranking(
        self, probabilities: Sequence[float], costs_usd: Sequence[float]
    ) -> tuple[int, ...]:
        """Return the arms by falling value, which is in correct answers."""
        price_usd = max(self.price_usd, LEAST_PRICE_USD)
        values = [p - cost / price_usd for p, cost in zip(probabilities, costs_usd, strict=True)]
        arms = by_probability(probabilities, costs_usd)
        arms.sort(key=values.__getitem__, reverse=True)
        return tuple(arms)

    def explain(self, choice: ChoiceFacts) -> str:
        """Return why an arm was chosen."""
        if choice.reason != Reason.UTILITY:
            return Policy.explain(self, choice)
        why = f"is the best value, if a correct answer is worth {self.price_usd:g} USD"
        if not choice.is_most_probable:
            why += f"; {choice.best} is more likely, and this one costs {choice.price}"
        return why

    @classmethod
    def measured_values(cls, costs_usd: Floats) -> tuple[Self, ...]:
        """Return prices that fit the costs: none if all arms cost the same."""
        spread_usd = float(np.ptp(costs_usd))
        if spread_usd == 0:
            return ()
        prices = dict.fromkeys(f"{spread_usd / slope:.{PRICE_DIGITS}g}" for slope in SLOPES)
        return tuple(cls(float(price)) for price in prices)
