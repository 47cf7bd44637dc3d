"""Releases that are tried beside the stable one: a canary decides for some, a shadow for none."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from router_service.core.errors import SwitchcraftError
from router_service.core.messages import Conversation
from router_service.core.releases import Canary, ExceededLimit, ReleaseStats, find_exceeded_limit
from router_service.requests.planning import Asked, DecidingRouter, Holders, Plan, Planner, Track
from router_service.telemetry.metrics import Metrics

MAX_WAITING = 64
"""Decisions that may wait for the shadow: about a second's worth on one core."""
MAX_WAITING_BYTES = 32 * 1024 * 1024
"""Bodies that may wait for it, together; one body may be larger."""

Tallies = Mapping[Track, ReleaseStats]


class CanaryTrial:
    """One canary's share of the conversations, and how it does beside the stable release.

    It ends itself: from the request on that shows an excess, the stable release decides all.
    """

    def __init__(
        self,
        canary: Canary,
        planner: Planner,
        on_excess: Callable[[Canary, ExceededLimit], None],
        tallies: Tallies | None = None,
    ) -> None:
        """Begin, or go on from `tallies`; `on_excess` is called once, on the event loop."""
        self.canary = canary
        self.planner = planner
        self.tallies: Tallies = tallies or {track: ReleaseStats() for track in Track}
        self._on_excess = on_excess
        self._is_over = False

    def takes(self, conversation: Conversation) -> bool:
        """Whether the canary decides for a conversation: the same at each of its turns."""
        return not self._is_over and self._lot(conversation) < self.canary.share

    def observe(self, track: Track, *, has_failed: bool, cost_usd: float | None) -> None:
        """Count a request that has ended, and judge."""
        self.tallies[track].add(has_failed=has_failed, cost_usd=cost_usd)
        if self._is_over or track is not Track.CANARY:
            return
        excess = find_exceeded_limit(
            self.tallies[Track.CANARY], self.tallies[Track.STABLE], self.canary
        )
        if excess is not None:
            self._is_over = True
            self._on_excess(self.canary, excess)

    def _lot(self, conversation: Conversation) -> float:
        """Draw a number in [0, 1) by how the conversation opens, and anew for each release."""
        facts = "\0".join((self.canary.release.key, *conversation.opening)).encode(
            errors="surrogatepass"
        )
        return int.from_bytes(hashlib.sha256(facts).digest()[:8]) / 2**64


class Shadow:
    """Lets a release decide what another has decided already, in a thread of its own."""

    def __init__(self, planner: Planner, metrics: Metrics) -> None:
        """Decide with a planner, one request at a time; the thread ends with this object."""
        self.router = planner.router
        self._planner = planner
        self._metrics = metrics
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="shadow")
        self._lock = threading.Lock()
        self._waiting = self._waiting_bytes = 0

    def ask(self, asked: Asked, policy: str | None, obeyed: Plan) -> Future[str | None] | None:
        """Decide later; return the arm's future, or None if too much waits already."""
        size_bytes = asked.body.size_bytes
        with self._lock:
            if self._waiting >= MAX_WAITING or self._waiting_bytes >= MAX_WAITING_BYTES:
                self._metrics.shadow_decisions.labels("dropped").inc()
                return None
            self._waiting += 1
            self._waiting_bytes += size_bytes
        arm = self._thread.submit(self._decide, asked, policy, obeyed.model.name)
        arm.add_done_callback(lambda _: self._done(size_bytes))
        return arm

    def _done(self, size_bytes: int) -> None:
        with self._lock:
            self._waiting -= 1
            self._waiting_bytes -= size_bytes

    def _decide(self, asked: Asked, policy: str | None, obeyed_model: str) -> str | None:
        plan = _decided(lambda planner: planner.plan(asked, policy), self._planner)
        if plan is None:
            self._metrics.shadow_decisions.labels("failed").inc()
            return None
        agrees = "yes" if plan.model.name == obeyed_model else "no"
        self._metrics.shadow_decisions.labels(agrees).inc()
        return plan.decision.arm if plan.decision else None


class TrialPlanner:
    """Plans as the stable release's planner does, but for what a canary takes."""

    def __init__(
        self, stable: Planner, *, canary: CanaryTrial | None = None, shadow: Shadow | None = None
    ) -> None:
        """Plan with the stable planner, and with those that are tried."""
        self._stable = stable
        self.canary = canary
        self._shadow = shadow
        self.names = stable.names

    @property
    def routers(self) -> frozenset[DecidingRouter]:
        """All that decide: the stable release's, and those that are tried."""
        canary = () if self.canary is None else (self.canary.planner.router,)
        shadow = () if self._shadow is None else (self._shadow.router,)
        return frozenset((self._stable.router, *canary, *shadow))

    def plan(
        self, asked: Asked, policy: str | None = None, holders: Holders = lambda _: None
    ) -> Plan:
        """Decide for a request; CPU-bound, raises as the stable planner does."""
        return self._plan(asked, policy, lambda planner: planner.plan(asked, policy, holders))

    def recall(
        self, asked: Asked, policy: str | None = None, holders: Holders = lambda _: None
    ) -> Plan:
        """Decide as `plan` does, at once; raises NotRecalledError where a model must be asked."""
        return self._plan(asked, policy, lambda planner: planner.recall(asked, policy, holders))

    def _plan(self, asked: Asked, policy: str | None, decide: Callable[[Planner], Plan]) -> Plan:
        planner, plan = self._obeyed(decide, asked.request.conversation)
        if plan.decision is None:
            return plan
        shadow_arm = self._shadow.ask(asked, policy, plan) if self._shadow else None
        plan = planner.explored(plan)
        return replace(plan, shadow_arm=shadow_arm) if shadow_arm else plan

    def _obeyed(
        self, decide: Callable[[Planner], Plan], conversation: Conversation
    ) -> tuple[Planner, Plan]:
        """Return who decides, and how: by its policy, for a shadow is compared with that."""
        trial = self.canary
        if trial is None:
            return self._stable, decide(self._stable)
        if not trial.takes(conversation):
            return self._stable, replace(decide(self._stable), trial=trial)
        plan = _decided(decide, trial.planner)
        if plan is None:
            stable = decide(self._stable)
            failed = replace(stable, trial=trial, track=Track.CANARY, router_failed=True)
            return self._stable, failed
        # What the router is not asked for is the stable release's: its prices, its chat model.
        if plan.decision is None:
            return self._stable, decide(self._stable)
        return trial.planner, replace(plan, trial=trial, track=Track.CANARY)


def _decided(decide: Callable[[Planner], Plan], tried: Planner) -> Plan | None:
    """Return a tried release's plan, or None where it has none: that must cost no request."""
    try:
        plan = decide(tried)
    except SwitchcraftError:  # a policy, say, that it does not have
        return None
    return None if plan.router_failed else plan
