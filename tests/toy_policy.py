"""A policy in one file, as CONTRIBUTING.md ("Add a policy") describes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Self

import pytest

from router_service.core.reasons import Reason
from router_service.policies.base import (
    SHARE_DOMAIN,
    ChoiceFacts,
    Control,
    Floats,
    Policy,
    Selection,
    Unit,
    cheapest_above,
    most_probable,
    read_share,
)
from router_service.policies.registry import POLICIES


@dataclass(frozen=True, slots=True)
class Ratio(Policy):
    """Policy: the cheapest arm whose probability is at least a share of the highest one."""

    share: float

    name: ClassVar[str] = "ratio"
    form: ClassVar[str] = "ratio=P"
    domain: ClassVar[str] = SHARE_DOMAIN
    example: ClassVar[str] = "ratio=0.9"
    control: ClassVar[Control] = Control(
        rule="ratio",
        kind="once",
        title="Cheapest with a share of the best probability",
        legend="ratio: the cheapest arm with a share of the highest probability",
        explanation="the cheapest model with {value} of the highest probability",
        parameter="Share",
        unit=Unit.SHARE,
        most=1.0,
    )

    @classmethod
    def parse(cls, text: str, *, param: str) -> Self:
        """Read `ratio=0.9`."""
        return cls(read_share(text, param=param))

    def __str__(self) -> str:
        return f"ratio={self.share:g}"

    def choose(self, probabilities: Sequence[float], costs_usd: Sequence[float]) -> Selection:
        """Choose the cheapest arm that has a share of the highest probability."""
        best = most_probable(probabilities, costs_usd)
        cheapest = cheapest_above(self.share * probabilities[best], probabilities, costs_usd)
        return Selection(best if cheapest is None else cheapest, Reason.POLICY)

    def least_probability(self, probabilities: Sequence[float]) -> float:
        """Return a share of the highest probability."""
        return self.share * max(probabilities)

    def explain(self, choice: ChoiceFacts) -> str:
        """Return why an arm was chosen."""
        return f"has at least {self.share:.0%} of {choice.best} and costs {choice.price}"

    @classmethod
    def measured_values(cls, costs_usd: Floats) -> tuple[Self, ...]:  # noqa: ARG003
        """Return three shares."""
        return tuple(map(cls, (0.7, 0.8, 0.9)))


@contextmanager
def registered() -> Iterator[None]:
    """Register the policy for some time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(POLICIES, Ratio.name, Ratio)
        yield
