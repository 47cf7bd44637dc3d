"""Releases: the stable one, and a canary release that is tried next to it."""

from __future__ import annotations

from router_service.core.errors import SwitchcraftError
from router_service.core.releases import CanaryTrial, Track
from router_service.core.resources import Timer
from router_service.requests.parsing import ParsedRequest
from router_service.requests.planning import Plan, Planner
from router_service.requests.policy_headers import NO_HEADERS, PolicyHeaders
from router_service.router import Router


class Releases:
    """The stable release's planner, and the canary release next to it."""

    def __init__(
        self,
        stable: Planner,
        tried: Planner | None = None,
        trial: CanaryTrial | None = None,
    ) -> None:
        """Plan with the stable planner, and with a canary's, `tried`, for its share in `trial`."""
        self.stable = stable
        self._tried = tried
        self.trial = trial

    @property
    def planners(self) -> tuple[Planner, ...]:
        """The planners of all releases."""
        return (self.stable,) if self._tried is None else (self.stable, self._tried)

    @property
    def routers(self) -> frozenset[Router]:
        """The routers of all releases."""
        return frozenset(planner.router for planner in self.planners)

    def prepare(self, request: ParsedRequest, headers: PolicyHeaders = NO_HEADERS) -> Plan:
        """Return the result of `Planner.prepare` of the release that decides for this conversation.

        If the canary fails, for example because it lacks the policy, the stable release decides.
        """
        trial, tried = self.trial, self._tried
        if trial is None or tried is None or self.stable.find_named(request) is not None:
            return self.stable.prepare(request, headers)
        if not trial.takes(request.conversation.opening):
            plan = self.stable.prepare(request, headers)
            plan.trial = trial
            return plan
        try:
            plan = tried.prepare(request, headers)
        except SwitchcraftError:
            return self._without_canary(request, headers)
        # Requests that are not routed get the stable release's prices and chat model.
        if not plan.arms:
            return self.stable.prepare(request, headers)
        plan.trial, plan.track = trial, Track.CANARY
        return plan

    def predict(self, plan: Plan, timer: Timer | None = None) -> Plan:
        """Return the plan with its prediction, which is None if the router fails.

        CPU-bound. If the canary fails, the stable release makes a new plan and its prediction.
        """
        plan.planner.predict(plan, timer)
        if plan.prediction is None and plan.track is Track.CANARY and not plan.canary_failed:
            conversation_id = plan.conversation_id
            plan = self._without_canary(plan.request, plan.policy_headers)
            plan.conversation_id = conversation_id
            self.stable.predict(plan, timer)
        return plan

    def _without_canary(self, request: ParsedRequest, headers: PolicyHeaders) -> Plan:
        plan = self.stable.prepare(request, headers)
        plan.trial, plan.track, plan.canary_failed = self.trial, Track.CANARY, True
        return plan
