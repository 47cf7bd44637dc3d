"""Limits and budgets of keys and teams, applied to the requests of this process."""

from __future__ import annotations

import math

from router_service.access.hooks import ExpectedCost, Grant, IncomingRequest, Outcome


class Access:
    """Admits requests within the limits and budgets of their keys and teams (`AccessHooks`)."""

    async def admit(self, request: IncomingRequest) -> Grant:
        """Count the request towards its limits, and choose its policy by its budgets."""
        del request
        return Grant()

    async def reserve(self, request: IncomingRequest, grant: Grant, cost: ExpectedCost) -> float:
        """Reserve the request's expected cost."""
        del request, grant, cost
        return math.inf

    def settle(self, request: IncomingRequest, grant: Grant, outcome: Outcome) -> None:
        """Correct what was counted and reserved by what the request has used."""

    async def aclose(self) -> None:
        """Do nothing; the database's thread writes what has been spent."""
