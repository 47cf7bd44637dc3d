"""Records, shared state and counters in the memory of this process, bounded in number and bytes."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from pydantic_core import to_json

from router_service.core.resources import ENTRY_BYTES, HeldMemory
from router_service.store.backends import Backend, CoolDown, R, Snapshot, StoreLimits

MAX_MEAN_BYTES = 4096
"""Largest mean size of the entries of a map in memory, unless the map has a lower limit."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class MemoryBackend(Backend):
    """The memory of this process, for a gateway with one process and without replicas."""

    name: ClassVar[str] = "memory"
    is_shared: ClassVar[bool] = False

    def __init__(self, url: str, limits: StoreLimits) -> None:
        """Start empty."""
        del url
        self._limits = limits
        self.stores: dict[str, HeldMemory] = {}
        """The stores that `records` has created, by the kind of their records."""

    @classmethod
    def check_address(cls, url: str) -> None:
        """Accept `memory:`, the only address."""

    def records(self, kind: type[R]) -> MemoryStore[R]:
        """Return a new store for one kind of record."""
        retention = self._limits.of(kind.kind)
        store: MemoryStore[R] = MemoryStore(
            ttl_s=retention.ttl_s,
            max_records=retention.max_records,
            clock=time.monotonic,
            max_mean_bytes=kind.max_mean_bytes,
        )
        self.stores[kind.kind] = store
        return store

    def shared_state(self) -> MemorySharedState:
        """Return new state, which this process shares with no other."""
        return MemorySharedState(time.monotonic)

    def counters(self) -> MemoryCounters:
        """Return new counters, which this process shares with no other."""
        return MemoryCounters(time.monotonic)

    async def ping(self) -> str:
        """Return that this process has memory."""
        return "keeps records in this process"


@dataclass(frozen=True, slots=True)
class _Kept(Generic[V]):
    """A value in an `ExpiringMap`."""

    expires_s: float
    value: V
    size_bytes: int
    owner: str | None


class ExpiringMap(Generic[K, V]):
    """The last `max_entries` values by key, which expire after `ttl_s` seconds.

    Together they take at most `max_mean_bytes` for each entry that is allowed. If there are too
    many, the oldest value of the owner with most values is dropped, so that no owner can push out
    the values of others. An owner is an API key.
    """

    def __init__(
        self,
        *,
        ttl_s: float,
        max_entries: int,
        clock: Callable[[], float],
        max_mean_bytes: int = MAX_MEAN_BYTES,
    ) -> None:
        """Start empty. `clock` returns seconds and never goes back."""
        self._ttl_s = ttl_s
        self._max_entries = max_entries
        self._clock = clock
        self._entries: OrderedDict[K, _Kept[V]] = OrderedDict()
        """All values, the oldest one first."""
        self._keys_of: dict[str | None, dict[K, None]] = {}
        """The keys of each owner's values, the oldest one first."""
        self.max_bytes = max_mean_bytes * max_entries
        self.size_bytes = 0

    def keep(self, key: K, value: V, size_bytes: int, owner: str | None = None) -> None:
        """Keep a value, which takes `size_bytes` with its key; drop what is too old or too much."""
        now_s, size_bytes = self._clock(), size_bytes + ENTRY_BYTES
        if key in self._entries:
            self._drop(key)
        self._entries[key] = _Kept(now_s + self._ttl_s, value, size_bytes, owner)
        self._keys_of.setdefault(owner, {})[key] = None
        self.size_bytes += size_bytes
        while self._entries:
            oldest = next(iter(self._entries))
            if self._entries[oldest].expires_s <= now_s:
                self._drop(oldest)
            elif len(self._entries) > self._max_entries or self.size_bytes > self.max_bytes:
                most = max(self._keys_of.values(), key=len)
                self._drop(next(iter(most)))
            else:
                return

    def _drop(self, key: K) -> None:
        kept = self._entries.pop(key)
        self.size_bytes -= kept.size_bytes
        keys = self._keys_of[kept.owner]
        del keys[key]
        if not keys:
            del self._keys_of[kept.owner]

    def find(self, key: K) -> V | None:
        """Return a value that has not expired. This may be called from any thread."""
        kept = self._entries.get(key)
        return None if kept is None or self._clock() >= kept.expires_s else kept.value

    def clear(self) -> None:
        """Drop all values."""
        self._entries.clear()
        self._keys_of.clear()
        self.size_bytes = 0


class MemoryStore(Generic[R]):
    """Store for the last `max_records` records, which expire after `ttl_s` seconds.

    Records are kept as JSON, as in Redis: a routed decision takes 1.2 KB as JSON and 5.1 KB as an
    object. Writing one takes 0.01 ms.
    """

    def __init__(
        self,
        *,
        ttl_s: float,
        max_records: int,
        clock: Callable[[], float],
        max_mean_bytes: int = MAX_MEAN_BYTES,
    ) -> None:
        """Start empty. `clock` returns seconds and never goes back."""
        self._records: ExpiringMap[str, tuple[type[R], bytes]] = ExpiringMap(
            ttl_s=ttl_s, max_entries=max_records, clock=clock, max_mean_bytes=max_mean_bytes
        )
        self.max_bytes = self._records.max_bytes

    @property
    def size_bytes(self) -> int:
        """Memory that the records take."""
        return self._records.size_bytes

    async def put(self, record: R) -> None:
        """Keep a record. The oldest records are dropped if there are too many."""
        self.keep(record)

    async def add(self, record: R) -> bool:
        """Keep a record if its id is new, and return whether it was."""
        is_new = self.find(record.id) is None
        if is_new:
            self.keep(record)
        return is_new

    async def get(self, record_id: str) -> R | None:
        """Return a record that has not expired."""
        return self.find(record_id)

    async def aclose(self) -> None:
        """Drop all records."""
        self._records.clear()

    def keep(self, record: R) -> None:
        """Keep a record, as `put` does."""
        text = to_json(record)
        size_bytes = len(record.id) + len(text)
        self._records.keep(record.id, (type(record), text), size_bytes, record.caller)

    def find(self, record_id: str) -> R | None:
        """Return a record that has not expired. This may be called from any thread."""
        kept = self._records.find(record_id)
        if kept is None:
            return None
        kind, record = kept
        return kind.model_validate_json(record)


class MemorySharedState:
    """Shared state of a gateway with one replica. It never contains a publication."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start empty. `clock` returns seconds and never goes back."""
        self._clock = clock
        self._ends_s: dict[str, float] = {}
        self._rejections: dict[str, str] = {}

    async def read(self, deployment_ids: Collection[str]) -> Snapshot:
        """Return the cool-downs of these deployments."""
        now_s = self._clock()
        self._ends_s = {name: end_s for name, end_s in self._ends_s.items() if end_s > now_s}
        found = {name: self._ends_s[name] for name in deployment_ids if name in self._ends_s}
        return Snapshot({name: CoolDown(end_s, end_s - now_s) for name, end_s in found.items()})

    async def is_rejected(self, release_key: str) -> bool:
        """Return whether this process has rejected a release."""
        return release_key in self._rejections

    async def cool_down(self, deployment_id: str, duration_s: float) -> None:
        """Start a cool-down, or extend one that ends earlier."""
        end_s = self._clock() + duration_s
        self._ends_s[deployment_id] = max(end_s, self._ends_s.get(deployment_id, end_s))

    async def reject(self, release_key: str, reason: str) -> None:
        """Record a rejection."""
        self._rejections[release_key] = reason

    async def aclose(self) -> None:
        """Do nothing, because there is no connection."""


class MemoryCounters:
    """Counters of one process, deleted when their time is over."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start empty. `clock` returns seconds and never goes back."""
        self._clock = clock
        self._counts: dict[str, tuple[float, int]] = {}
        """When each counter is deleted, and its value."""

    async def add(
        self, name: str, amount: int, *, ttl_s: float, at_most: int | None = None
    ) -> int | None:
        """Add to a counter and return its new value, or None if that exceeds `at_most`."""
        now_s = self._clock()
        ends_s, value = self._counts.get(name, (now_s, 0))
        if ends_s <= now_s:  # a new counter: only these make room for themselves
            self._counts = {name: kept for name, kept in self._counts.items() if kept[0] > now_s}
            ends_s, value = now_s + ttl_s, 0
        value += amount
        if at_most is not None and value > at_most:
            return None
        self._counts[name] = (ends_s, value)
        return value

    async def aclose(self) -> None:
        """Do nothing, because there is no connection."""
