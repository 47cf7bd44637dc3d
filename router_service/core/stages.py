"""Timing of the stages of a decision, by a clock that the caller provides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

Clock = Callable[[], float]
"""Returns seconds and never goes back."""


class StageName(StrEnum):
    """Stages of the gateway's own work on a request, in order."""

    BODY = "body"
    """Reading the body."""
    PARSE = "parse"
    QUEUE = "queue"
    """Waiting for a thread; a large body waits before it is parsed."""
    PACK = "pack"
    CLASSIFY = "classify"
    SELECT = "select"


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of one request; `started_s` is in seconds of the clock that timed it."""

    name: StageName
    started_s: float
    seconds: float


class Timer:
    """Timer of consecutive stages: each begins when the previous one ends."""

    def __init__(self, clock: Clock) -> None:
        """Begin the first stage now."""
        self._clock = clock
        self._started_s = clock()
        self._stages: list[Stage] = []

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages that have ended."""
        return tuple(self._stages)

    def end(self, name: StageName) -> None:
        """End the present stage and begin the next."""
        now_s = self._clock()
        self._stages.append(Stage(name, self._started_s, now_s - self._started_s))
        self._started_s = now_s
