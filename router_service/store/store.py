"""What a store keeps for gateways: records, shared state, and limits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

SETTING = "server.redis_url"
"""The setting with the address of the Redis that replicas share."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How long the records of one kind are kept, and how many of them fit into memory."""

    ttl_s: int
    max_records: int


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """The retention of every kind of record."""

    default: Retention
    by_kind: Mapping[str, Retention] = field(default_factory=dict)
    """Kinds of records with a retention of their own."""

    def of(self, kind: str) -> Retention:
        """Return the retention of a kind of record."""
        return self.by_kind.get(kind, self.default)


@dataclass(frozen=True, slots=True)
class CoolDown:
    """A cool-down of a deployment that a replica has started."""

    end_s: float
    """When it ends, by the shared state's own clock. It identifies the cool-down."""
    left_s: float
    """Seconds until it ends."""


MINUTE_US = 60_000_000
"""What a rate may be used at once: all that it allows in a minute."""

MAX_USE_US = 60 * MINUTE_US
"""Longest time for which a rate is used up. One huge request, or a clock of Redis that jumps back,
costs no key more than an hour."""

SLOT_TTL_S = 300.0
"""Time after which Redis frees a slot that nobody has freed. Only processes that were killed leave
such slots behind. A request that takes longer does not count any more."""


class LimitDemand(NamedTuple):
    """What a request takes from one limit: an amount of a rate, or one slot.

    A rate is kept as the time until nothing of it is used any more (its "theoretical arrival time"
    in GCRA, the generic cell rate algorithm of ITU-T I.371). A rate of 60 requests a minute is used
    one second longer with each request. So a rate takes one number, which expires by itself, and a
    store knows neither limits nor amounts.
    """

    name: str
    """Name of the limit, with its key or team."""
    most: int
    """The most that may be in use before the request: microseconds of a rate, or slots."""
    cost_us: int | None
    """Time that the request adds to the rate; None for a slot."""


class Correction(NamedTuple):
    """What is added to a limit, or given back, when a request has ended."""

    name: str
    cost_us: int | None
    """Time that is added to a rate, or given back if it is negative; None frees a slot."""
    holder: str
    """The request."""


def fits(demands: Iterable[LimitDemand], used: Iterable[int]) -> bool:
    """Return whether a request is admitted with what is in use of each limit."""
    return all(use <= demand.most for demand, use in zip(demands, used, strict=True))


class Store(ABC):
    """Place where gateways keep records, shared state and limits.

    Connections are opened on first use, and belong to one event loop. Every operation raises
    StoreError if the store is unreachable.
    """

    is_shared: ClassVar[bool] = True
    """Whether other processes see what is kept here."""

    @abstractmethod
    async def put(self, kind: str, record_id: str, text: bytes, owner: str | None) -> None:
        """Keep a record of a kind under its id until it expires; `owner` is an API key."""

    @abstractmethod
    async def add(self, kind: str, record_id: str, text: bytes, owner: str | None) -> bool:
        """Keep a record in one step if its id is new, and return whether it was."""

    @abstractmethod
    async def get(self, kind: str, record_id: str) -> bytes | None:
        """Return a record, or None if it is unknown or has expired."""

    @abstractmethod
    async def cool_downs(self, deployment_ids: Collection[str]) -> Mapping[str, CoolDown]:
        """Return the cool-downs of these deployments that have not ended, in one round trip."""

    @abstractmethod
    async def is_rejected(self, release_key: str) -> bool:
        """Return whether a replica has rejected a release."""

    @abstractmethod
    async def cool_down(self, deployment_id: str, duration_s: float) -> None:
        """Start a cool-down. Of two cool-downs, the one that ends later counts.

        A cool-down cannot be ended early: while it lasts, the deployment gets no request, so
        nothing can show that the deployment has recovered.
        """

    @abstractmethod
    async def reject(self, release_key: str, reason: str) -> None:
        """Reject a release, so that no replica tries it again."""

    @abstractmethod
    async def take(self, holder: str, demands: Sequence[LimitDemand]) -> Sequence[int]:
        """Take all of these if all fit, and otherwise nothing, in one step and one round trip.

        Return what was in use of each limit before; `fits` tells whether everything was taken.
        `holder` is the request, which holds the slots until it frees them, or its process ends.
        """

    @abstractmethod
    async def settle(self, corrections: Sequence[Correction]) -> None:
        """Correct rates and free slots. What is not in use, or not held, is ignored."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close the connections."""
