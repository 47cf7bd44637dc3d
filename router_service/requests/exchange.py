"""The state of one request: its ids, and what happens between the gateway and its upstreams."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import StrEnum

import orjson

from router_service.core.answers import NO_USAGE, ParsedAnswer, Usage
from router_service.core.decision_log import DecisionRecord
from router_service.requests.planning import GatewayReason, Plan
from router_service.settings import Model
from router_service.tracing import UNTRACED, Trace
from router_service.upstream.answers import CHARACTERS_PER_TOKEN, AnswerIdentity
from router_service.upstream.retries import Attempt

CLIENT_LEFT = 499
"""Status in logs and metrics if the client left; it never gets one."""


class Ending(StrEnum):
    """How an answer ended."""

    COMPLETE = "complete"
    """Relayed to its end; also an upstream's error."""
    FAILED = "failed"
    """No upstream gave a usable answer; the client got an error of the gateway's."""
    BROKEN = "broken"
    """A stream broke after its first byte had been relayed."""
    CLIENT_LEFT = "client_left"
    """The client closed its connection before the end."""


@dataclass(slots=True)
class RequestInfo:
    """Request metadata: ids, arrival time, API-key name."""

    decision_id: str
    request_id: str
    """The client's id for the request, or ours."""
    started_s: float
    """Arrival, by the clock of `time.perf_counter`."""
    key: str | None = None
    """Name of the API key."""
    trace: Trace = UNTRACED
    is_logged: bool = False
    """Whether the request's log line has been written; each request has one."""


@dataclass(slots=True)
class Exchange:
    """The mutable state of a planned request while upstreams answer it."""

    info: RequestInfo
    plan: Plan
    model: Model = field(init=False)
    """The model that answered, or that was tried last; until then the chosen one."""
    status: int = CLIENT_LEFT
    ending: Ending = Ending.CLIENT_LEFT
    started_s: float = field(default_factory=time.perf_counter)
    """When the first upstream was called."""
    first_byte_s: float | None = None
    upstream_s: float = 0.0
    usage: Usage | None = None
    answer: ParsedAnswer | None = None
    """The parsed answer, if it is complete and not too large."""
    attempts: list[Attempt] = field(default_factory=list)
    """Deployments that were tried, in order."""
    identity: AnswerIdentity = field(default_factory=AnswerIdentity)
    """The id and the model that the upstream's answer names."""
    may_be_clients: bool = False
    """Whether a failure may be the client's fault, so that it does not count against a release."""
    record: DecisionRecord | None = None
    """The decision record, once the exchange has ended."""

    def __post_init__(self) -> None:
        """Start with the chosen model."""
        self.model = self.plan.model

    def end(self, status: int, ending: Ending) -> None:
        """Set the status that the client gets, and how the answer ended."""
        self.status, self.ending = status, ending

    @property
    def is_fallback(self) -> bool:
        """Whether another model than the chosen one answers."""
        return self.model is not self.plan.model

    @property
    def has_failed(self) -> bool:
        """Whether the upstream or the gateway failed, and not the client.

        If clients' mistakes counted, a client could roll back a canary with impossible deadlines.
        """
        if self.plan.router_failed:
            return True
        is_error = self.status >= 500 or self.status == 429
        is_incomplete = self.ending in {Ending.FAILED, Ending.BROKEN}
        return (is_error or is_incomplete) and not self.may_be_clients

    def estimate_usage(self, completion_tokens: int) -> Usage:
        """Return an estimate of the usage, for answers that do not report it."""
        size_bytes = self.plan.request.body.size_bytes
        return Usage(
            prompt_tokens=-(-size_bytes // CHARACTERS_PER_TOKEN),
            completion_tokens=completion_tokens,
            is_estimated=True,
        )

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return the response headers that describe the decision."""
        plan = self.plan
        values = {
            "x-switchcraft-decision-id": self.info.decision_id,
            "x-switchcraft-model": self.model.name,
            "x-switchcraft-reason": GatewayReason.FALLBACK if self.is_fallback else plan.reason,
            "x-switchcraft-attempts": str(len(self.attempts)),
        }
        if plan.policy is not None:
            values["x-switchcraft-policy"] = str(plan.policy)
        return [
            # Model names may be in any script; JSON escapes what a header cannot carry.
            (name.encode(), value.encode() if value.isascii() else orjson.dumps(str(value)))
            for name, value in values.items()
        ]


def answer_cost_usd(model: Model, usage: Usage | None, upstream_s: float) -> float | None:
    """Return an answer's cost at its model's price; None if the price or the usage is unknown."""
    price = model.price
    if price is None or (usage is None and price.has_token_prices):
        return None
    return price.cost_of(usage or NO_USAGE, upstream_s)
