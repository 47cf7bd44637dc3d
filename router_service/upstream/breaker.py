"""Circuit breakers: a deployment that fails too often is not tried for a while."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from router_service.core.errors import UpstreamError
from router_service.settings import BreakerSettings

BUCKETS = 12
"""Parts of a window. The window moves by one part at a time."""

MIN_FAILURE_SHARE = 0.5
"""Least share of failures that opens a circuit. A busy deployment has a few failures at any
time."""

FAILURES_IN_A_ROW = 10
"""Failures without an answer in between that open a circuit. After much good traffic, it would take
up to a minute until half of the answers are failures. With one failure in five requests, ten in a
row are as rare as one in ten million."""

OnOpen = Callable[[str, float], None]
"""Function that receives a deployment's id and the seconds for which its circuit will be open."""

_log = logging.getLogger("switchcraft.upstream")


@dataclass(frozen=True, slots=True)
class OpenCircuit:
    """A circuit that is open now."""

    left_s: float
    """Seconds until the next request may be sent."""
    cause: str | None
    """The failure that opened it, or None if another replica has opened it."""


@dataclass(slots=True)
class _Count:
    answers: int = 0
    failures: int = 0

    def is_mostly_failures(self) -> bool:
        return self.failures >= MIN_FAILURE_SHARE * self.answers

    @classmethod
    def sum(cls, counts: Iterable[_Count]) -> _Count:
        total = cls()
        for count in counts:
            total.answers += count.answers
            total.failures += count.failures
        return total


@dataclass(slots=True)
class _Window:
    """Answers and failures of the last `window_s` seconds, by client."""

    bucket_s: float
    buckets: deque[tuple[float, dict[str | None, _Count]]] = field(default_factory=deque)
    """Start of each part of the window, and its counts by client."""

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
        clients = dict.fromkeys(client for _, counts in self.buckets for client in counts)
        return {
            client: _Count.sum(counts[client] for _, counts in self.buckets if client in counts)
            for client in clients
        }


@dataclass(slots=True)
class _Breaker:
    window: _Window
    cooldown_s: float
    """How long the circuit stays open next time."""
    open_until_s: float | None = None
    """None while the circuit is closed."""
    own_until_s: float = 0.0
    """End of the last cool-down that requests of this replica have caused. Other replicas cannot
    end it earlier."""
    cause: str | None = None
    """The failure that last opened the circuit here; None if another replica has opened it."""
    is_probing: bool = False
    streak: dict[str | None, int] = field(default_factory=dict)
    """Failures since the last answer, by client."""
    culprit: str | None = None
    """The client that caused all failures in the window, or None if several clients caused them or
    if clients have no keys."""


class CircuitBreakers:
    """Circuit breakers of all deployments, by deployment id (M. Nygard, "Release It!", chapter 5).

    A closed circuit counts failures. An open circuit admits no requests. After its cool-down, one
    request probes the deployment: success closes the circuit, failure opens it for twice as long.
    Breakers outlive reloads of the configuration, because deployments that failed before a reload
    usually fail after it too. All methods must be called on the event loop.

    A client can send requests that no deployment can answer. Failures of these requests must not
    make a deployment unavailable to other clients. So the failures of one client do not open a
    circuit while other clients get good answers. If a single client has opened a circuit, requests
    of other clients are sent as probes. Clients are identified by the names of their keys. Without
    keys, all clients count as one.
    """

    def __init__(
        self, settings: BreakerSettings, clock: Callable[[], float], on_open: OnOpen
    ) -> None:
        """Call `on_open` when this replica opens a circuit, so that others can be informed."""
        self._settings = settings
        self._clock = clock
        self._on_open = on_open
        self._breakers: dict[str, _Breaker] = {}

    def reconfigure(self, settings: BreakerSettings) -> None:
        """Use other settings from now on. Open circuits stay open."""
        self._settings = settings

    def wait_s(self, deployment_id: str, client: str | None = None) -> float:
        """Return the seconds until a deployment may be tried, or 0 if it may be tried now."""
        breaker = self._breakers.get(deployment_id)
        if breaker is None or breaker.open_until_s is None:
            return 0.0
        if client is not None and breaker.culprit not in {None, client}:
            return 0.0
        if breaker.is_probing:
            return breaker.cooldown_s
        return max(0.0, breaker.open_until_s - self._clock())

    def admit(self, deployment_id: str, client: str | None = None) -> bool:
        """Return whether a request may be sent. The first one after a cool-down is the probe.

        An admitted request must be followed by `record_success`, `record_failure` or `release`.
        """
        breaker = self._breakers.get(deployment_id)
        if breaker is None or breaker.open_until_s is None:
            return True
        if self.wait_s(deployment_id, client) > 0:
            return False
        breaker.is_probing = True
        return True

    def release(self, deployment_id: str) -> None:
        """End an admitted request whose result shows nothing about the deployment's health."""
        if breaker := self._breakers.get(deployment_id):
            breaker.is_probing = False

    def record_success(self, deployment_id: str, client: str | None = None) -> None:
        """Count an answer. The answer to a probe closes the circuit."""
        breaker = self._breakers.get(deployment_id)
        if breaker is None or breaker.is_probing:
            breaker = self._add(deployment_id)
        breaker.window.count(self._clock(), client)
        breaker.streak.clear()

    def record_failure(
        self,
        deployment_id: str,
        error: UpstreamError,
        *,
        address: str,
        had_begun: bool = False,
        client: str | None = None,
    ) -> None:
        """Count a failure. Open the circuit after too many, or if the upstream asks to wait.

        The log line names the deployment's `address`, because its id shows only a hash. If the
        answer `had_begun` well, `record_success` has already counted it as an answer.
        """
        breaker = self._breakers.get(deployment_id) or self._add(deployment_id)
        breaker.window.count(self._clock(), client, answers=0 if had_begun else 1, failures=1)
        breaker.streak[client] = breaker.streak.get(client, 0) + 1
        totals = breaker.window.totals()
        is_failing = self._is_failing(totals) or self._has_stopped(breaker.streak, totals)
        failing = [name for name, count in totals.items() if count.failures]
        breaker.culprit = failing[0] if len(failing) == 1 else None
        longest_s = self._settings.max_cooldown_s
        if error.retry_after_s:
            open_s = min(error.retry_after_s, longest_s)
        elif breaker.is_probing or (breaker.open_until_s is None and is_failing):
            open_s = min(breaker.cooldown_s, longest_s)
            breaker.cooldown_s = 2 * open_s
        else:
            return
        breaker.own_until_s = breaker.open_until_s = self._clock() + open_s
        breaker.is_probing = False
        breaker.streak.clear()
        breaker.cause = error.cause
        _log.warning(
            'circuit open for %g s: model=%s address=%s deployment=%s cause="%s"',
            round(open_s, 3),
            error.model,
            address,
            deployment_id,
            breaker.cause,
        )
        self._on_open(deployment_id, open_s)

    def _is_failing(self, totals: Mapping[str | None, _Count]) -> bool:
        """Return whether too many requests fail, with and without the client that fails most."""
        total = _Count.sum(totals.values())
        if total.failures <= self._settings.allowed_fails or not total.is_mostly_failures():
            return False
        worst = max(totals.values(), key=lambda count: count.failures)
        others = _Count.sum(count for count in totals.values() if count is not worst)
        return others.answers == 0 or others.is_mostly_failures()

    def _has_stopped(
        self, streak: Mapping[str | None, int], totals: Mapping[str | None, _Count]
    ) -> bool:
        """Return whether too many requests have failed in a row, and not only those of one client.

        The requests of one client are enough if no other client has got an answer lately.
        """
        least = max(FAILURES_IN_A_ROW, self._settings.allowed_fails + 1)
        is_one_client = len(streak) == 1 and len(totals) > 1
        return sum(streak.values()) >= least and not is_one_client

    def adopt(self, begun: Mapping[str, float], ended: Collection[str] = ()) -> None:
        """Start cool-downs that other replicas have started, and end those that they have ended.

        `begun` holds the remaining seconds of each cool-down by deployment, and `ended` the
        deployments whose cool-downs have ended. At most `max_cooldown_s` seconds count, so that a
        replica with a wrong clock or a mistaken entry cannot stop this replica's requests for days.
        If a cool-down expires or `ended` ends it, the next request is the probe. A cool-down that
        began in this replica is not shortened.
        """
        now_s, longest_s = self._clock(), self._settings.max_cooldown_s
        for deployment_id, seconds in begun.items():
            breaker = self._breakers.get(deployment_id) or self._add(deployment_id)
            if not breaker.is_probing:
                until_s = now_s + min(seconds, longest_s)
                breaker.open_until_s = max(breaker.open_until_s or 0.0, until_s)
        for deployment_id in ended:
            ended_breaker = self._breakers.get(deployment_id)
            if ended_breaker is not None and ended_breaker.open_until_s is not None:
                own_s = max(now_s, ended_breaker.own_until_s)
                ended_breaker.open_until_s = min(ended_breaker.open_until_s, own_s)

    def open_circuits(self) -> dict[str, OpenCircuit]:
        """Return the open circuits by deployment."""
        waits_s = {name: self.wait_s(name) for name in self._breakers}
        return {
            name: OpenCircuit(left_s, self._breakers[name].cause)
            for name, left_s in waits_s.items()
            if left_s > 0
        }

    def _add(self, deployment_id: str) -> _Breaker:
        window = _Window(self._settings.window_s / BUCKETS)
        breaker = self._breakers[deployment_id] = _Breaker(window, self._settings.cooldown_s)
        return breaker
