"""Limits and budgets of keys and teams, applied to the requests of this process.

Admission comes before the decision: it may refuse a request, or allow it only a cheaper policy.
Reservation comes after the decision, when the request's expected cost is known, and before the
first upstream is asked. Settlement learns what the request has cost. `http.transfer` admits and
reserves, and `http.front` settles.
"""

from __future__ import annotations

import math

from router_service.access.budgets import Budgets, ExpectedCost
from router_service.access.limits import Admission, RateLimits
from router_service.access.pacing import Pacing
from router_service.core.record import Record


class Access:
    """Admits requests within the limits and budgets of their keys and teams."""

    def __init__(self, limits: RateLimits, budgets: Budgets, pacing: Pacing) -> None:
        """Use these limits and budgets."""
        self._limits = limits
        self._budgets = budgets
        self._pacing = pacing

    async def admit(self, admission: Admission) -> None:
        """Count a request towards its limits, and say which policies its budgets allow.

        Raises AdmissionError; a call that raises has admitted nothing.
        """
        if not admission.key.limited:
            return
        if admission.key.has_budget:
            admission.allowance = self._pacing.allowance(admission.key)
        await self._limits.admit(admission)  # the last step, so that nothing taken is lost

    async def reserve(self, admission: Admission, cost: ExpectedCost) -> float:
        """Reserve what an admitted request may cost in the budgets of its key and its team.

        Return what is left for the request: infinite if `cost.most_usd` is reserved, and at least
        `cost.least_usd`. If it is lower than `cost.usd`, a cheaper model has to answer. Raises
        AdmissionError if less is left.
        """
        reservation = admission.reservation = await self._budgets.reserve(admission.key, cost)
        return math.inf if reservation is None else reservation.allowance_usd

    def settle(self, admission: Admission, status: int, record: Record | None) -> None:
        """Replace what was counted and reserved by what the request has used; returns at once.

        This is called exactly once for each admitted request: also if it fails, if its client
        leaves, or if the gateway shuts down. `record` is None if no model of the pool was asked, or
        if the request was passed to an upstream without being parsed, whose cost is unknown.
        """
        self._limits.settle(admission, record)
        if admission.reservation is not None:
            cost_usd = None if record is None else record.actual_cost_usd
            if cost_usd is None and status >= 400:
                cost_usd = 0.0  # no model has answered
            self._budgets.settle(admission.reservation, cost_usd)

    async def aclose(self) -> None:
        """Send the last corrections; the database's thread then writes what was spent."""
        self._budgets.close()
        await self._limits.aclose()
