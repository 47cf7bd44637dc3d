"""What a policy is: how it is written, what it chooses, and how people read about it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Literal, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from router_service.core.errors import PolicyError
from router_service.core.reasons import Reason
from router_service.core.values import Strict

DRIFT_TOLERANCE = 1e-9
"""Tolerance for rounding: an arm whose probability is exactly `p_max - delta` must pass."""

LEAST_PRICE_USD = 1e-12
"""Replaces a price of 0, at which no arm is worth its cost, as a divisor."""

PRICE_DIGITS = 3
"""Significant digits of a measured price: it is part of a policy's name."""

SHARE_DOMAIN = "P from 0 to 1"
PRICE_DOMAIN = "PRICE in USD"

Floats = NDArray[np.float64]
Columns = NDArray[np.int64]
Probability = TypeVar("Probability", float, Floats)


class Unit(StrEnum):
    """Unit in which people read a policy's number."""

    SHARE = "share"
    """A probability, in percent."""
    POINTS = "points"
    """A difference of probabilities, in percentage points."""
    USD = "usd"


class Control(Strict):
    """What people see of a policy where they can choose its number, as on the page.

    The page has one step for each value that was measured (`Policy.measured_values`).
    """

    rule: str
    """The policy's name, as in `theta=0.5`."""
    kind: Literal["once", "verified"]
    """Whether the policy chooses one model before any answer, or verifies answers."""
    title: str
    """What the policy does, in a few words."""
    legend: str
    """The text of a plot's legend."""
    explanation: str
    """Which model a number chooses; `{value}` stands for the number."""
    parameter: str
    """What the number means."""
    unit: Unit
    least: float = 0.0
    most: float | None = None
    """The largest number; None if there is no limit."""
    larger_is_cheaper: bool = False
    """Whether a larger number chooses cheaper models."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Index of the chosen arm, and the reason."""

    arm: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class ChoiceFacts:
    """The values of one choice, from which a policy explains it."""

    reason: str
    is_most_probable: bool
    """Whether the chosen arm is the most probable one."""
    best: str
    """The most probable arm with its probability, as in `the best model (big, 94%)`."""
    cost_usd: float
    best_cost_usd: float

    @property
    def price(self) -> str:
        """How the arm's cost compares with the best arm's, as in `3 times less`."""
        return _compare(self.cost_usd, self.best_cost_usd)


class Rule(ABC):
    """How a policy is written, and what people read about it."""

    __slots__ = ()

    name: ClassVar[str]
    """The name, as in `theta=0.5`."""
    form: ClassVar[str]
    """How the policy is written, as in `theta=P`."""
    domain: ClassVar[str]
    """Which numbers it takes, as in `P from 0 to 1`."""
    example: ClassVar[str]
    """The policy as it may be written, as in `theta=0.8`."""
    reasons: ClassVar[tuple[Reason, ...]]
    """The reasons that it may give."""
    control: ClassVar[Control]

    @classmethod
    @abstractmethod
    def parse(cls, text: str, *, param: str) -> Self:
        """Read the policy from a text that begins with its name, as `str` writes it.

        Raises PolicyError; `param` is the field of the request that holds the text.
        """

    @abstractmethod
    def __str__(self) -> str:
        """Return the policy as it is written."""


class Policy(Rule):
    """A policy that chooses one arm by its probability and expected cost, before any answer.

    A subclass implements `parse`, `__str__` and `choose`. The other methods have defaults that
    follow from `choose`.
    """

    __slots__ = ()

    reasons: ClassVar[tuple[Reason, ...]] = (Reason.POLICY,)

    @abstractmethod
    def choose(self, probabilities: Sequence[float], costs_usd: Sequence[float]) -> Selection:
        """Choose an arm by its probability and expected cost, (arms,) each.

        Of arms with equal cost, or of equal value, the more probable one is chosen, then the
        earlier. Raises ValueError if there are no arms or a probability is not a number.
        """

    def choose_rows(self, probabilities: Floats, costs_usd: Floats) -> Columns:
        """Return the arm that `choose` chooses for each row, (rows,).

        `probabilities` and `costs_usd` are (rows, arms). Raises ValueError if there are no arms or
        a probability is not a number.
        """
        check_rows(probabilities)
        rows = zip(probabilities.tolist(), costs_usd.tolist(), strict=True)
        return np.array([self.choose(*row).arm for row in rows], dtype=np.int64)

    def ranking(
        self, probabilities: Sequence[float], costs_usd: Sequence[float]
    ) -> tuple[int, ...]:
        """Return the arms in the order in which they are tried.

        Each arm is the one that `choose` would choose among the remaining arms.
        """
        left = list(range(len(probabilities)))
        order = []
        while left:
            chosen = self.choose([probabilities[i] for i in left], [costs_usd[i] for i in left])
            order.append(left.pop(chosen.arm))
        return tuple(order)

    def least_probability(self, probabilities: Sequence[float]) -> float | None:
        """Return the probability that an arm must reach, or None without a minimum."""
        return None

    def explain(self, choice: ChoiceFacts) -> str:
        """Return why an arm was chosen: the end of a sentence that begins with `big: 94%`."""
        return f"was chosen by {self}"

    @classmethod
    def measured_values(cls, costs_usd: Floats) -> tuple[Self, ...]:
        """Return the policies of this kind that a frontier measures.

        `costs_usd` are the arms' mean expected costs, (arms,).
        """
        return ()


class FloorPolicy(Policy):
    """A policy that chooses the cheapest arm above a floor, or else the most probable arm.

    Its first reason is that of an arm above the floor, and its last one that of any other arm.
    """

    __slots__ = ()

    @abstractmethod
    def floor(self, highest: Probability) -> Probability | float:
        """Return the probability that an arm must reach; `highest` is that of the best arm."""

    def choose(self, probabilities: Sequence[float], costs_usd: Sequence[float]) -> Selection:
        """Choose the cheapest arm above the floor, or the most probable one."""
        best = most_probable(probabilities, costs_usd)
        floor = self.floor(probabilities[best])
        passing = [arm for arm, p in enumerate(probabilities) if p >= floor]
        if not passing:
            return Selection(best, self.reasons[-1])
        arm = min(passing, key=lambda arm: (costs_usd[arm], -probabilities[arm], arm))
        return Selection(arm, self.reasons[0])

    def choose_rows(self, probabilities: Floats, costs_usd: Floats) -> Columns:
        """Return the arm that `choose` chooses for each row."""
        check_rows(probabilities)
        passes = probabilities >= self.floor(probabilities.max(axis=1, keepdims=True))
        likely = np.lexsort((costs_usd, -probabilities))[:, 0]
        cheapest = np.lexsort((-probabilities, np.where(passes, costs_usd, np.inf)))[:, 0]
        return np.where(passes.any(axis=1), cheapest, likely)

    def ranking(
        self, probabilities: Sequence[float], costs_usd: Sequence[float]
    ) -> tuple[int, ...]:
        """Return the arms as `choose` chooses them among those that remain."""
        likely = by_probability(probabilities, costs_usd)
        order = []
        while likely:
            chosen = likely[0]
            floor = self.floor(probabilities[chosen])
            for arm in likely:
                if probabilities[arm] < floor:
                    break
                if costs_usd[arm] < costs_usd[chosen]:
                    chosen = arm
            likely.remove(chosen)
            order.append(chosen)
        return tuple(order)


def most_probable(probabilities: Sequence[float], costs_usd: Sequence[float]) -> int:
    """Return the arm with the highest probability; of equal ones the cheapest, then the first.

    Raises ValueError if there are no arms or a probability is not a number.
    """
    if not probabilities or any(map(math.isnan, probabilities)):
        raise ValueError(f"needs a probability for every arm, without NaN: {list(probabilities)}")
    return by_probability(probabilities, costs_usd)[0]


def by_probability(probabilities: Sequence[float], costs_usd: Sequence[float]) -> list[int]:
    """Return all arms, the most probable first; of equal ones the cheapest, then the first."""
    arms = sorted(range(len(probabilities)), key=costs_usd.__getitem__)
    arms.sort(key=probabilities.__getitem__, reverse=True)
    return arms


def check_rows(probabilities: Floats) -> None:
    """Raise ValueError if there are no arms or a probability is not a number, (rows, arms)."""
    if not probabilities.shape[1] or np.isnan(probabilities).any():
        raise ValueError("needs a probability for every arm, without NaN")


def read_share(text: str, *, param: str) -> float:
    """Read the number of a policy whose number is from 0 to 1; raises PolicyError."""
    value = _read_number(text, param)
    if not 0.0 <= value <= 1.0:  # false for NaN too
        name, _, number = (part.strip() for part in text.partition("="))
        problem = f"{number} is outside 0 to 1"
        if 1 < value <= 100:
            problem += f"; for {number}%, write {name}={value / 100:g}"
        raise PolicyError(text, problem, param=param)
    return value


def read_price(text: str, *, param: str) -> float:
    """Read the number of a policy whose number is a price in USD; raises PolicyError."""
    value = _read_number(text, param)
    if not 0.0 <= value < math.inf:
        number = text.partition("=")[2].strip()
        raise PolicyError(text, f"the price {number} is not a number of USD", param=param)
    return value


def _read_number(text: str, param: str) -> float:
    """Return the number after the equals sign."""
    number = text.partition("=")[2].strip()
    try:
        return float(number)
    except ValueError as exc:
        raise PolicyError(text, f"{number!r} is not a number", param=param) from exc


def _compare(cost_usd: float, other_usd: float) -> str:
    """Return how a cost compares with another one, as in `3 times less` or `20% more`."""
    if cost_usd == other_usd:
        return "the same"
    low, high = sorted((cost_usd, other_usd))
    word = "less" if cost_usd < other_usd else "more"
    if low == 0:
        return "nothing" if cost_usd == 0 else "more"
    ratio = high / low
    if ratio >= 2:
        return f"{ratio:.2g} times {word}" if ratio < 10 else f"{ratio:.0f} times {word}"
    return f"{abs(cost_usd / other_usd - 1):.0%} {word}"
