"""How long the steps of a decision took, by a clock that the caller brings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

Clock = Callable[[], float]
"""Returns seconds and never goes back."""


class StageName(StrEnum):
    """The gateway's own work on a request, in the order in which it is done."""

    BODY = "body"
    """Until the body was read."""
    PARSE = "parse"
    QUEUE = "queue"
    """Waiting for a thread; a large body waits before it is read."""
    PACK = "pack"
    CLASSIFY = "classify"
    SELECT = "select"


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of one request; `started_s` is by the clock that timed it."""

    name: StageName
    started_s: float
    seconds: float


class Laps:
    """Times steps that follow each other: each begins where the last one ended."""

    def __init__(self, clock: Clock) -> None:
        """Begin the first step now."""
        self._clock = clock
        self._started_s = clock()
        self._stages: list[Stage] = []

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The steps that have ended."""
        return tuple(self._stages)

    def end(self, name: StageName) -> None:
        """End the present step, and begin the next."""
        now_s = self._clock()
        self._stages.append(Stage(name, self._started_s, now_s - self._started_s))
        self._started_s = now_s
