"""Leaves a deployment alone for a while once it has failed too often."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from router_service.settings import BreakerSettings

BUCKETS = 12
"""Parts that a window is counted in; it moves on by one of them."""

MIN_FAILURE_SHARE = 0.5
"""Of the window's answers: a busy deployment has a few failures at any time."""

OnOpen = Callable[[str, float], None]


@dataclass(slots=True)
class _Count:
    answers: int = 0
    failures: int = 0

    def is_mostly_failures(self) -> bool:
        return self.failures >= MIN_FAILURE_SHARE * self.answers


@dataclass(slots=True)
class _Window:
    """Answers and failures of the last `window_s` seconds, by client."""

    bucket_s: float
    buckets: deque[tuple[float, dict[str | None, _Count]]] = field(default_factory=deque)
    """Start and counts of each part."""

    def count(
        self, now_s: float, client: str | None, *, answers: int = 1, failures: int = 0
    ) -> None:
        start = now_s - now_s % self.bucket_s
        if not self.buckets or self.buckets[-1][0] != start:
            self.buckets.append((start, {}))
        counts = self.buckets[-1][1]
        if client not in counts:
            counts[client] = _Count()
        counts[client].answers += answers
        counts[client].failures += failures
        while self.buckets[0][0] <= now_s - BUCKETS * self.bucket_s:
            self.buckets.popleft()

    def totals(self) -> dict[str | None, _Count]:
        totals: dict[str | None, _Count] = {}
        for _, counts in self.buckets:
            for client, count in counts.items():
                total = totals.setdefault(client, _Count())
                total.answers += count.answers
                total.failures += count.failures
        return totals


@dataclass(slots=True)
class _Breaker:
    window: _Window
    cooldown_s: float
    """How long it stays open next time."""
    open_until_s: float | None = None
    """None while it is closed."""
    own_until_s: float = 0.0
    """The same as far as this gateway's own requests have opened it."""
    is_probing: bool = False
    culprit: str | None = None
    """The client whose requests alone opened it; None if several did, or if clients have no keys.
    """


class CircuitBreakers:
    """One circuit breaker a deployment, known by its id (M. Nygard, "Release It!", chapter 5).

    Closed, it counts; open, nobody asks; after its time one request tries, and closes it or opens
    it for twice as long. They outlive configurations, for what failed before a reload fails after.
    Not for threads: requests share them on the event loop.

    A client can send requests that no deployment can answer, so that its failures alone must not
    take a deployment from other clients. They open no breaker while others get good answers, and
    while one client alone has opened it, requests of others go through as probes. Clients are known
    by the names of their keys; without keys all are one.
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

    def wait_s(self, deployment_id: str, client: str | None = None) -> float:
        """Return the seconds until a deployment may be asked again; 0 if it may be asked now."""
        breaker = self._breakers.get(deployment_id)
        if breaker is None or breaker.open_until_s is None:
            return 0.0
        if client is not None and breaker.culprit not in {None, client}:
            return 0.0
        if breaker.is_probing:
            return breaker.cooldown_s
        return max(0.0, breaker.open_until_s - self._clock())

    def admit(self, deployment_id: str, client: str | None = None) -> bool:
        """Say whether a request may go there; after a cool-down the first that asks is the probe.

        A request that was admitted must be followed by `succeeded`, `failed` or `left`.
        """
        if self.wait_s(deployment_id, client) > 0:
            return False
        breaker = self._breakers.get(deployment_id)
        if breaker is not None and breaker.open_until_s is not None:
            breaker.is_probing = True
        return True

    def succeeded(self, deployment_id: str, client: str | None = None) -> None:
        """Count an answer; one to a probe closes the breaker."""
        breaker = self._of(deployment_id)
        if breaker.is_probing:
            self._breakers[deployment_id] = breaker = self._new()
        breaker.window.count(self._clock(), client)

    def failed(
        self,
        deployment_id: str,
        retry_after_s: float | None = None,
        *,
        had_begun: bool = False,
        client: str | None = None,
    ) -> None:
        """Count a failure; one too many, or one that says when to come back, opens the breaker.

        An answer that `had_begun` well was counted by `succeeded` then, and is not another one.
        """
        breaker, settings = self._of(deployment_id), self._settings
        breaker.window.count(self._clock(), client, answers=0 if had_begun else 1, failures=1)
        totals = breaker.window.totals()
        failing = [name for name, count in totals.items() if count.failures]
        breaker.culprit = failing[0] if len(failing) == 1 else None
        if retry_after_s:
            self._open(deployment_id, breaker, min(retry_after_s, settings.max_cooldown_s))
        elif breaker.is_probing or (breaker.open_until_s is None and self._is_often(totals)):
            seconds = min(breaker.cooldown_s, settings.max_cooldown_s)
            self._open(deployment_id, breaker, seconds)
            breaker.cooldown_s = 2 * seconds

    def _is_often(self, totals: Mapping[str | None, _Count]) -> bool:
        """Whether too much fails: of all answers, and of those of all clients but the worst."""
        total = _sum(totals.values())
        if total.failures <= self._settings.allowed_fails or not total.is_mostly_failures():
            return False
        worst = max(totals.values(), key=lambda count: count.failures)
        others = _sum(count for count in totals.values() if count is not worst)
        return others.answers == 0 or others.is_mostly_failures()

    def left(self, deployment_id: str) -> None:
        """Forget a request that ended without showing how the deployment is."""
        if breaker := self._breakers.get(deployment_id):
            breaker.is_probing = False

    def adopt(self, begun: Mapping[str, float], ended: Collection[str] = ()) -> None:
        """Open for cool-downs that other gateways began, and end those that are gone.

        `begun` holds the seconds that are left by deployment, of which at most `max_cooldown_s`
        count: a gateway with another clock or a mistaken entry must not stop this one for days.
        After either end one request probes. What was found here is not shortened.
        """
        now_s, longest_s = self._clock(), self._settings.max_cooldown_s
        for deployment_id, seconds in begun.items():
            breaker = self._of(deployment_id)
            if not breaker.is_probing:
                until_s = now_s + min(seconds, longest_s)
                breaker.open_until_s = max(breaker.open_until_s or 0.0, until_s)
        for deployment_id in ended:
            ended_breaker = self._breakers.get(deployment_id)
            if ended_breaker is not None and ended_breaker.open_until_s is not None:
                own_s = max(now_s, ended_breaker.own_until_s)
                ended_breaker.open_until_s = min(ended_breaker.open_until_s, own_s)

    def open_ids(self) -> frozenset[str]:
        """Return the deployments whose circuit is open."""
        return frozenset(name for name in self._breakers if self.wait_s(name) > 0)

    def _open(self, deployment_id: str, breaker: _Breaker, seconds: float) -> None:
        breaker.own_until_s = breaker.open_until_s = self._clock() + seconds
        breaker.is_probing = False
        self._on_open(deployment_id, seconds)

    def _of(self, deployment_id: str) -> _Breaker:
        if deployment_id not in self._breakers:
            self._breakers[deployment_id] = self._new()
        return self._breakers[deployment_id]

    def _new(self) -> _Breaker:
        window = _Window(self._settings.window_s / BUCKETS)
        return _Breaker(window, self._settings.cooldown_s)


def _sum(counts: Iterable[_Count]) -> _Count:
    total = _Count()
    for count in counts:
        total.answers += count.answers
        total.failures += count.failures
    return total
