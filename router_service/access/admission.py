"""Limits and budgets of keys and teams, applied to the requests of this process."""

from __future__ import annotations

import math
from dataclasses import dataclass

from router_service.access.alerts import BudgetAlerts
from router_service.access.budgets import Budgets, Reservation
from router_service.access.hooks import ExpectedCost, Grant, IncomingRequest, Outcome
from router_service.access.pacing import Pacing
from router_service.core.errors import AdmissionError


@dataclass(slots=True)
class AccessGrant(Grant):
    """Admission of one request, with what it has reserved."""

    reservation: Reservation | None = None


class Access:
    """Admits requests within the limits and budgets of their keys and teams (`AccessHooks`)."""

    def __init__(self, budgets: Budgets, pacing: Pacing, alerts: BudgetAlerts) -> None:
        """Use these budgets, change policies as they run out, and alert."""
        self._budgets = budgets
        self._pacing = pacing
        self._alerts = alerts

    async def admit(self, request: IncomingRequest) -> AccessGrant:
        """Count the request towards its limits, and choose its policy by its budgets."""
        self._alerts.note(request.key)
        return AccessGrant(allowance=self._pacing.allowance(request.key))

    async def reserve(self, request: IncomingRequest, grant: Grant, cost: ExpectedCost) -> float:
        """Reserve the request's expected cost."""
        try:
            reservation = await self._budgets.reserve(request.key, cost)
        except AdmissionError:
            self._alerts.refused(request.key)
            raise
        if reservation is None or not isinstance(grant, AccessGrant):
            return math.inf
        grant.reservation = reservation
        return reservation.allowance_usd

    def settle(self, request: IncomingRequest, grant: Grant, outcome: Outcome) -> None:
        """Correct what was counted and reserved by what the request has used."""
        del request
        if isinstance(grant, AccessGrant) and grant.reservation is not None:
            record = outcome.record
            cost_usd = None if record is None else record.actual_cost_usd
            if cost_usd is None and outcome.status >= 400:
                cost_usd = 0.0  # no model has answered
            self._budgets.settle(grant.reservation, cost_usd)

    async def aclose(self) -> None:
        """Let the last write of the database's thread give back what is not spent."""
        self._alerts.close()
        self._budgets.close()
