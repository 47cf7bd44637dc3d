"""Releases: the stable one, and a canary release that is tried next to it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace

from router_service.apis.conversation import Conversation
from router_service.core.errors import (
    SwitchcraftError,
)
from router_service.core.releases import (
    Canary,
    ExceededLimit,
    ReleaseStats,
    Track,
    find_exceeded_limit,
)
from router_service.core.resources import Timer
from router_service.requests.parsing import ParsedRequest
from router_service.requests.planning import (
    NO_HEADERS,
    DecidingRouter,
    Plan,
    Planner,
    PolicyHeaders,
)
from router_service.router import Prediction

OnExcess = Callable[[Canary, ExceededLimit], None]

Tallies = Mapping[Track, ReleaseStats]


class CanaryTrial:
    """Trial of a canary release on a share of the conversations, with both releases' results.

    The trial ends when the canary exceeds a limit. From then on, the stable release decides for all
    conversations.
    """

    def __init__(
        self,
        canary: Canary,
        planner: Planner,
        on_excess: Callable[[Canary, ExceededLimit], None],
        tallies: Tallies | None = None,
    ) -> None:
        """Start, or continue with the `tallies` of an earlier trial of the same canary.

        `on_excess` is called once, on the event loop, if the canary exceeds a limit.
        """
        self.canary = canary
        self.planner = planner
        self.tallies: Tallies = tallies or {track: ReleaseStats() for track in Track}
        self._on_excess = on_excess
        self._is_over = False

    def takes(self, conversation: Conversation) -> bool:
        """Return whether the canary decides for a conversation; the same for all of its turns."""
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


class Releases:
    """The stable release's planner, and the canary release next to it."""

    def __init__(self, stable: Planner, *, canary: CanaryTrial | None = None) -> None:
        """Plan with the stable planner, and with the canary's for its share of conversations."""
        self._stable = stable
        self.canary = canary
        self.names = stable.names
        self.names_for = stable.names_for
        self.has_name = stable.has_name
        self.may_name = stable.may_name
        self.check_model = stable.check_model
        self.unalias = stable.unalias
        self.limits_for = stable.limits_for
        self.models_for = stable.models_for
        self.pool_for = stable.pool_for

    @property
    def routers(self) -> frozenset[DecidingRouter]:
        """The routers of all releases."""
        canary = () if self.canary is None else (self.canary.planner.router,)
        return frozenset((self._stable.router, *canary))

    @property
    def planners(self) -> tuple[Planner, ...]:
        """The planners of all releases."""
        return (self._stable,) if self.canary is None else (self._stable, self.canary.planner)

    def prepare(self, request: ParsedRequest, headers: PolicyHeaders = NO_HEADERS) -> Plan:
        """Return the result of `Planner.prepare` of the release that decides for this conversation.

        If the canary fails, for example because it lacks the policy, the stable release decides.
        """
        trial = self.canary
        if trial is None or self._stable.find_named(request) is not None:
            return self._stable.prepare(request, headers)
        if not trial.takes(request.conversation):
            return replace(self._stable.prepare(request, headers), trial=trial)
        try:
            plan = trial.planner.prepare(request, headers)
        except SwitchcraftError:
            return self._without_canary(request, headers)
        # Requests that are not routed get the stable release's prices and chat model.
        if not plan.arms:
            return self._stable.prepare(request, headers)
        return replace(plan, trial=trial, track=Track.CANARY)

    def predict(self, plan: Plan, timer: Timer | None = None) -> tuple[Plan, Prediction | None]:
        """Return the plan and its prediction, which is None if the router fails.

        CPU-bound. If the canary fails, the stable release makes a new plan and its prediction.
        """
        prediction = plan.planner.predict(plan, timer)
        if prediction is None and plan.track is Track.CANARY and not plan.canary_failed:
            plan = self._without_canary(plan.request, plan.policy_headers)
            prediction = self._stable.predict(plan, timer)
        return plan, prediction

    def choose(self, plan: Plan, prediction: Prediction) -> Plan:
        """Return the plan with the chosen arm, or with a random arm for the exploration share.

        Requests to be verified are not explored: the accepted answer could not be weighted, because
        its arm also depends on the answers.
        """
        planner = plan.planner
        plan = planner.choose(plan, prediction)
        if planner.exploration_share > 0 and plan.verified is None:
            plan = planner.explore(plan)
        return plan

    def _without_canary(self, request: ParsedRequest, headers: PolicyHeaders) -> Plan:
        plan = self._stable.prepare(request, headers)
        return replace(plan, trial=self.canary, track=Track.CANARY, canary_failed=True)
