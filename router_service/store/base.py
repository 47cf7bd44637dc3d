"""What a store of decisions can do, and what it holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pydantic import BaseModel, ConfigDict


class DecisionRecord(BaseModel):
    """What was decided for one request, and what became of it; never what the request said."""

    # Replicas of two versions may share a store: fields that are unknown here are passed over.
    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    created: float
    """When the answer ended, in Unix seconds."""
    model: str
    """The pool's model that answered, or that was asked last."""
    deployment: str | None = None
    """Id of the deployment that did."""
    attempts: int = 0
    """Deployments that were tried, the last one included."""
    arm: str | None = None
    """The artifact's arm; None where the router was not asked."""
    reason: str
    policy: str | None = None
    probabilities: Mapping[str, float] | None = None
    """Of a correct answer, by arm."""
    cost_usd: Mapping[str, float] | None = None
    """Expected cost of the request, by arm."""
    packed_tokens: int | None = None
    stream: bool
    status: int
    """HTTP status that the client got, or 499 for a client that had left."""
    ending: str
    """How the answer ended: `complete`, `failed`, `broken` or `client_left`."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    usage_is_estimated: bool | None = None
    """Whether the gateway counted the tokens, because the upstream did not say."""
    actual_cost_usd: float | None = None
    """Tokens at list price; None where either is unknown."""
    latency_s: float
    """From the request's arrival to the end of its answer."""
    first_byte_s: float | None = None
    """From the request to the upstream until the first byte of its answer."""


class DecisionStore(Protocol):
    """Holds decisions for a while; every operation raises StoreError where it is unreachable."""

    async def put(self, record: DecisionRecord) -> None:
        """Keep a record under its id."""

    async def get(self, decision_id: str) -> DecisionRecord | None:
        """Return a record, or None where it is unknown or has expired."""

    async def aclose(self) -> None:
        """Let go of connections."""
