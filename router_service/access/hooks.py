"""Hooks around the requests that upstreams answer: admission, reservation and settlement.

Admission comes before the decision: it may refuse a request, or change the policy that applies to
it. Reservation comes after the decision, when the request's expected cost is known, and before the
first upstream is asked. Settlement learns what the request has cost. `http.transfer.admit` calls
the first hook, `http.inference` the second, and `http.front` the third.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from router_service.access.allowance import Allowance
from router_service.access.key import Key
from router_service.core.record import Record
from router_service.core.values import request_value


@request_value(frozen=True, slots=True)
class IncomingRequest:
    """A request that has been read, and of which nothing is decided yet."""

    id: str
    """The id of the decision that will be made."""
    key: Key
    method: str
    path: str
    """The path below `/v1`, such as `/chat/completions`."""
    size_bytes: int
    """Size of the body."""
    policy: str | None
    """The policy that a header of the request asks for."""
    reports_tokens: bool = True
    """Whether the outcome will have the tokens that the request uses. If it is false, the request
    is passed to an upstream without being parsed, or only counts tokens."""


@dataclass(slots=True)
class Grant:
    """Admission of one request. A hook may return an object of a subclass, with a reservation."""

    policy: str | None = None
    """The policy that applies, in place of the one that the request asks for; None keeps that."""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """Headers of the response, such as those about rate limits. They replace those that the
    upstream has sent."""
    reserves: bool = True
    """Whether the cost has to be reserved; if not, the second hook is not called."""
    allowance: Allowance | None = None
    """What the budgets of the key and its team allow; None without a budget."""


@dataclass(frozen=True, slots=True)
class ExpectedCost:
    """What a planned request is expected to cost, and between which limits its cost may be."""

    usd: float
    """Expected cost with the chosen model."""
    least_usd: float
    """Cost of a very short answer of the cheapest model that may answer."""
    most_usd: float
    """Cost of the longest answers that the request allows, of the dearest models that may answer.
    """


@request_value(frozen=True, slots=True)
class Outcome:
    """How an admitted request has ended."""

    status: int
    """The HTTP status; 499 if the client left before the answer."""
    record: Record | None
    """The record with the total cost, tokens, policy, and all candidates with their own costs. None
    if the request was not sent to a model of the pool: because it could not be planned, or because
    it was passed to an upstream without being parsed, whose cost is unknown."""


class AccessHooks(Protocol):
    """Decides which requests are admitted, and learns how they end."""

    async def admit(self, request: IncomingRequest) -> Grant:
        """Admit a request, or raise AdmissionError; a call that raises has admitted nothing.

        The client waits for this call, so it must be quick.
        """

    async def reserve(self, request: IncomingRequest, grant: Grant, cost: ExpectedCost) -> float:
        """Reserve what an admitted request may cost, and return what is left for it.

        The result is infinite if `cost.most_usd` is reserved. If it is lower than `cost.usd`, a
        cheaper model has to answer. It is at least `cost.least_usd`. Raises AdmissionError if less
        is left.
        """

    def settle(self, request: IncomingRequest, grant: Grant, outcome: Outcome) -> None:
        """Account for a request that has ended; must return at once.

        This is called exactly once for each admitted request: also if it fails, if its client
        leaves, or if the gateway shuts down. An error is logged, and reaches no client.
        """

    async def aclose(self) -> None:
        """Finish the work that settlements have started; called after the last settlement."""
