"""Releases beside the stable one: a canary release serves a share, a shadow release serves none."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

from router_service.core.errors import SwitchcraftError
from router_service.core.messages import Conversation
from router_service.core.releases import Canary, ExceededLimit, ReleaseStats, find_exceeded_limit
from router_service.core.resources import Timer
from router_service.requests.parsing import ParsedRequest
from router_service.requests.planning import DecidingRouter, Plan, Planner, Track
from router_service.router import Prediction
from router_service.store.base import UpstreamObject
from router_service.telemetry.metrics import Metrics

MAX_WAITING = 64
"""Decisions that may wait for the shadow: about a second's worth on one core."""
MAX_WAITING_BYTES = 32 * 1024 * 1024
"""Total size of the bodies that may wait for the shadow; one body may be larger."""

Tallies = Mapping[Track, ReleaseStats]


class CanaryTrial:
    """A canary release's share of the conversations, and its results beside the stable release's.

    The trial ends itself: after the request that shows an excess, the stable release decides for
    all conversations.
    """

    def __init__(
        self,
        canary: Canary,
        planner: Planner,
        on_excess: Callable[[Canary, ExceededLimit], None],
        tallies: Tallies | None = None,
    ) -> None:
        """Start, or continue from `tallies`; `on_excess` is called once, on the event loop."""
        self.canary = canary
        self.planner = planner
        self.tallies: Tallies = tallies or {track: ReleaseStats() for track in Track}
        self._on_excess = on_excess
        self._is_over = False

    def takes(self, conversation: Conversation) -> bool:
        """Return whether the canary decides for a conversation; the same for all its turns."""
        if self._is_over:
            return False
        # A number in [0, 1) from the conversation's opening, and different for each release.
        facts = "\0".join((self.canary.release.key, *conversation.opening))
        digest = hashlib.sha256(facts.encode(errors="surrogatepass")).digest()
        return int.from_bytes(digest[:8]) / 2**64 < self.canary.share

    def observe(self, track: Track, *, has_failed: bool, cost_usd: float | None) -> None:
        """Count a request that has ended, and end the trial if the canary exceeds a limit."""
        self.tallies[track].add(has_failed=has_failed, cost_usd=cost_usd)
        if self._is_over or track is not Track.CANARY:
            return
        excess = find_exceeded_limit(
            self.tallies[Track.CANARY], self.tallies[Track.STABLE], self.canary
        )
        if excess is not None:
            self._is_over = True
            self._on_excess(self.canary, excess)


class Shadow:
    """Release that decides for requests without being used, in a separate thread."""

    def __init__(self, planner: Planner, metrics: Metrics) -> None:
        """Decide with a planner, one request at a time; the thread ends with this object."""
        self.router = planner.router
        self._planner = planner
        self._metrics = metrics
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="shadow")
        self._lock = threading.Lock()
        self._waiting = self._waiting_bytes = 0

    def compare(self, plan: Plan) -> Future[str | None] | None:
        """Decide later for a planned request; return the arm's future, or None if too many wait."""
        size_bytes = plan.request.body.size_bytes
        with self._lock:
            if self._waiting >= MAX_WAITING or self._waiting_bytes >= MAX_WAITING_BYTES:
                self._metrics.shadow_decisions.labels("dropped").inc()
                return None
            self._waiting += 1
            self._waiting_bytes += size_bytes

        def finish(_: object) -> None:
            with self._lock:
                self._waiting -= 1
                self._waiting_bytes -= size_bytes

        # Not the plan itself: it would keep the stable release alive.
        arm = self._thread.submit(
            self._decide, plan.request, plan.requested_policy, plan.model.name
        )
        arm.add_done_callback(finish)
        return arm

    def _decide(self, request: ParsedRequest, policy: str | None, served: str) -> str | None:
        """Return the arm that this release chooses, and count whether its model is the same."""
        prediction: Prediction | None = None
        with suppress(SwitchcraftError):  # for example a policy that this release does not have
            plan = self._planner.prepare(request, policy)
            prediction = self._planner.predict(plan)
        if prediction is None:
            self._metrics.shadow_decisions.labels("failed").inc()
            return None
        plan = self._planner.choose(plan, prediction)
        agrees = "yes" if plan.model.name == served else "no"
        self._metrics.shadow_decisions.labels(agrees).inc()
        return plan.decision.arm if plan.decision else None


class Releases:
    """The stable release's planner, and the releases that are tried beside it."""

    def __init__(
        self, stable: Planner, *, canary: CanaryTrial | None = None, shadow: Shadow | None = None
    ) -> None:
        """Plan with the stable planner, and with the canary's for its share of conversations."""
        self._stable = stable
        self.canary = canary
        self._shadow = shadow
        self.names = stable.names

    @property
    def routers(self) -> frozenset[DecidingRouter]:
        """The routers of all releases."""
        canary = () if self.canary is None else (self.canary.planner.router,)
        shadow = () if self._shadow is None else (self._shadow.router,)
        return frozenset((self._stable.router, *canary, *shadow))

    def prepare(self, request: ParsedRequest, policy: str | None = None) -> Plan:
        """Return the plan of the release that decides for this conversation, as `Planner.prepare`.

        If the canary fails, for example because it lacks the policy, the stable release decides.
        """
        trial = self.canary
        if trial is None:
            return self._stable.prepare(request, policy)
        if not trial.takes(request.chat.conversation):
            return replace(self._stable.prepare(request, policy), trial=trial)
        try:
            plan = trial.planner.prepare(request, policy)
        except SwitchcraftError:
            return self._without_canary(request, policy)
        # Requests that are not routed get the stable release's prices and chat model.
        if not plan.arms:
            return self._stable.prepare(request, policy)
        return replace(plan, trial=trial, track=Track.CANARY)

    def continued(self, plan: Plan, held: UpstreamObject | None) -> Plan:
        """Return the plan for a request that continues a stored response."""
        return self._stable.continued(plan, held)

    def cached(self, plan: Plan) -> Prediction | None:
        """Return an earlier prediction of the plan's release for the same conversation, if any."""
        return self._planner(plan).router.cached(plan.request.chat.conversation)

    def predict(self, plan: Plan, timer: Timer | None = None) -> tuple[Plan, Prediction | None]:
        """Return a prediction, or None if the router fails, with the plan that it is for.

        CPU-bound. If the canary fails, the plan and the prediction are the stable release's.
        """
        prediction = self._planner(plan).predict(plan, timer)
        if prediction is None and plan.track is Track.CANARY and not plan.canary_failed:
            plan = self._without_canary(plan.request, plan.requested_policy)
            prediction = self._stable.predict(plan, timer)
        return plan, prediction

    def choose(self, plan: Plan, prediction: Prediction) -> Plan:
        """Return the plan with the chosen arm, after exploration; the shadow decides later."""
        planner = self._planner(plan)
        plan = planner.choose(plan, prediction)
        # A shadow is compared with the policy's choice, not with an arm drawn at random.
        shadow_arm = self._shadow.compare(plan) if self._shadow else None
        plan = planner.explore(plan)
        return replace(plan, shadow_arm=shadow_arm) if shadow_arm else plan

    def _planner(self, plan: Plan) -> Planner:
        is_canary = plan.track is Track.CANARY and not plan.canary_failed
        return self.canary.planner if self.canary and is_canary else self._stable

    def _without_canary(self, request: ParsedRequest, policy: str | None) -> Plan:
        plan = self._stable.prepare(request, policy)
        return replace(plan, trial=self.canary, track=Track.CANARY, canary_failed=True)
