"""Leaves a deployment alone for a while once it has failed too often."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from router_service.settings import BreakerSettings

BUCKETS = 12
"""Parts that a window is counted in; it moves on by one of them."""

MIN_FAILURE_SHARE = 0.5
"""Of the window's answers: a busy deployment has a few failures at any time."""

OnOpen = Callable[[str, float], None]


@dataclass(slots=True)
class _Window:
    """Answers and failures of the last `window_s` seconds."""

    bucket_s: float
    buckets: deque[list[float]] = field(default_factory=deque)
    """Start, answers, failures of each part."""

    def count(self, now_s: float, *, answers: int = 1, failures: int = 0) -> None:
        start = now_s - now_s % self.bucket_s
        if not self.buckets or self.buckets[-1][0] != start:
            self.buckets.append([start, 0, 0])
        self.buckets[-1][1] += answers
        self.buckets[-1][2] += failures
        while self.buckets[0][0] <= now_s - BUCKETS * self.bucket_s:
            self.buckets.popleft()

    def totals(self) -> tuple[float, float]:
        return sum(b[1] for b in self.buckets), sum(b[2] for b in self.buckets)


@dataclass(slots=True)
class _Breaker:
    window: _Window
    cooldown_s: float
    """How long it stays open next time."""
    open_until_s: float | None = None
    """None while it is closed."""
    is_probing: bool = False


class Breakers:
    """One circuit breaker a deployment, known by its id (M. Nygard, "Release It!", chapter 5).

    Closed, it counts; open, nobody asks; after its time one request tries, and closes it or opens
    it for twice as long. They outlive configurations, for what failed before a reload fails after.
    Not for threads: requests share them on the event loop.
    """

    def __init__(
        self, settings: BreakerSettings, clock: Callable[[], float], on_open: OnOpen
    ) -> None:
        """Have none open; `on_open` is told the deployment and the seconds, for others to share."""
        self._settings = settings
        self._clock = clock
        self._on_open = on_open
        self._breakers: dict[str, _Breaker] = {}

    def reconfigure(self, settings: BreakerSettings) -> None:
        """Count by other settings from here on; what is open stays so."""
        self._settings = settings

    def wait_s(self, deployment_id: str) -> float:
        """Return how long a deployment is still to be left alone; 0 where it may be asked."""
        breaker = self._breakers.get(deployment_id)
        if breaker is None or breaker.open_until_s is None:
            return 0.0
        if breaker.is_probing:
            return breaker.cooldown_s
        return max(0.0, breaker.open_until_s - self._clock())

    def admit(self, deployment_id: str) -> bool:
        """Say whether a request may go there; after a cool-down the first that asks is the probe.

        A request that was admitted must be followed by `succeeded`, `failed` or `left`.
        """
        if self.wait_s(deployment_id) > 0:
            return False
        breaker = self._breakers.get(deployment_id)
        if breaker is not None and breaker.open_until_s is not None:
            breaker.is_probing = True
        return True

    def succeeded(self, deployment_id: str) -> None:
        """Count an answer; one to a probe closes the breaker."""
        breaker = self._of(deployment_id)
        if breaker.is_probing:
            self._breakers[deployment_id] = breaker = self._new()
        breaker.window.count(self._clock())

    def failed(
        self, deployment_id: str, retry_after_s: float | None = None, *, had_begun: bool = False
    ) -> None:
        """Count a failure; one too many, or one that says when to come back, opens the breaker.

        An answer that `had_begun` well was counted by `succeeded` then, and is not another one.
        """
        breaker, settings = self._of(deployment_id), self._settings
        breaker.window.count(self._clock(), answers=0 if had_begun else 1, failures=1)
        answers, failures = breaker.window.totals()
        is_often = failures > settings.allowed_fails and failures >= MIN_FAILURE_SHARE * answers
        if retry_after_s:
            self._open(deployment_id, breaker, min(retry_after_s, settings.max_cooldown_s))
        elif breaker.is_probing or (is_often and breaker.open_until_s is None):
            seconds = min(breaker.cooldown_s, settings.max_cooldown_s)
            self._open(deployment_id, breaker, seconds)
            breaker.cooldown_s = 2 * seconds

    def left(self, deployment_id: str) -> None:
        """Forget a request that ended without showing how the deployment is."""
        if breaker := self._breakers.get(deployment_id):
            breaker.is_probing = False

    def adopt(self, cool_downs: Mapping[str, float]) -> None:
        """Leave alone what another gateway leaves alone, for its seconds by deployment."""
        now_s = self._clock()
        for deployment_id, seconds in cool_downs.items():
            breaker = self._of(deployment_id)
            if not breaker.is_probing:
                breaker.open_until_s = max(breaker.open_until_s or 0.0, now_s + seconds)

    def open_ids(self) -> frozenset[str]:
        """Return the deployments that are left alone now."""
        return frozenset(name for name in self._breakers if self.wait_s(name) > 0)

    def _open(self, deployment_id: str, breaker: _Breaker, seconds: float) -> None:
        breaker.open_until_s = self._clock() + seconds
        breaker.is_probing = False
        self._on_open(deployment_id, seconds)

    def _of(self, deployment_id: str) -> _Breaker:
        if deployment_id not in self._breakers:
            self._breakers[deployment_id] = self._new()
        return self._breakers[deployment_id]

    def _new(self) -> _Breaker:
        window = _Window(self._settings.window_s / BUCKETS)
        return _Breaker(window, self._settings.cooldown_s)
