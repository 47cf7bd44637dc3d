"""Records, shared state and limits in the memory of this process, bounded in number and bytes."""

from __future__ import annotations

import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import ClassVar, Generic, TypeVar

from router_service.core.decision_record import Storable, StoredRecord
from router_service.core.resources import ENTRY_BYTES
from router_service.core.values import request_value
from router_service.store.store import (
    MAX_USE_US,
    CoolDown,
    Correction,
    LimitDemand,
    Store,
    StoreLimits,
)

MAX_MEAN_BYTES = 4096
"""Largest mean size of the entries of a map in memory, unless the map has a lower limit."""

FIRST_CLEANING = 1000
"""Number of rates at which those that are not in use any more are first forgotten."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
R = TypeVar("R", bound=StoredRecord)


@request_value(frozen=True, slots=True)
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
        self._keys_of: defaultdict[str | None, dict[K, None]] = defaultdict(dict)
        """The keys of each owner's values, the oldest one first."""
        self._owners: defaultdict[int, dict[str | None, None]] = defaultdict(dict)
        """The owners by the number of their values. Comparing all owners for each value beyond the
        limit would take 0.2 ms with 10,000 owners."""
        self._most = 0
        """The number of values of the owner with most of them."""
        self.max_bytes = max_mean_bytes * max_entries
        self.size_bytes = 0

    def keep(self, key: K, value: V, size_bytes: int, owner: str | None = None) -> None:
        """Keep a value, which takes `size_bytes` with its key; drop what is too old or too much."""
        now_s, size_bytes = self._clock(), size_bytes + ENTRY_BYTES
        if key in self._entries:
            self._drop(key)
        self._entries[key] = _Kept(now_s + self._ttl_s, value, size_bytes, owner)
        keys = self._keys_of[owner]
        keys[key] = None
        self._move(owner, len(keys) - 1, len(keys))
        self.size_bytes += size_bytes
        while self._entries:
            oldest = next(iter(self._entries))
            if self._entries[oldest].expires_s <= now_s:
                self._drop(oldest)
            elif len(self._entries) > self._max_entries or self.size_bytes > self.max_bytes:
                owner_with_most = next(iter(self._owners[self._most]))
                self._drop(next(iter(self._keys_of[owner_with_most])))
            else:
                return

    def _drop(self, key: K) -> None:
        kept = self._entries.pop(key)
        self.size_bytes -= kept.size_bytes
        keys = self._keys_of[kept.owner]
        del keys[key]
        self._move(kept.owner, len(keys) + 1, len(keys))
        if not keys:
            del self._keys_of[kept.owner]

    def _move(self, owner: str | None, before: int, now: int) -> None:
        """Note that an owner has one value more or less than before."""
        if before:
            owners = self._owners[before]
            del owners[owner]
            if not owners:
                del self._owners[before]
        if now:
            self._owners[now][owner] = None
        if now > self._most or self._most not in self._owners:
            self._most = now

    def find(self, key: K) -> V | None:
        """Return a value that has not expired. This may be called from any thread."""
        kept = self._entries.get(key)
        return None if kept is None or self._clock() >= kept.expires_s else kept.value


class LocalRecords(Generic[R]):
    """The last records of one kind in this process's memory.

    Records are kept as JSON, as in Redis: a routed decision takes 1.2 KB as JSON and 5.1 KB as an
    object. Fields with their default are omitted, which saves a sixth.
    """

    def __init__(self, kind: type[R], entries: ExpiringMap[str, bytes]) -> None:
        self._kind = kind
        self._entries = entries

    def keep(self, record: Storable) -> None:
        """Keep a record. The oldest records are dropped if there are too many."""
        text = record.stored_json()
        self._entries.keep(record.id, text, len(record.id) + len(text), record.caller)

    def find(self, record_id: str) -> R | None:
        """Return a record that has not expired. This may be called from any thread."""
        kept = self._entries.find(record_id)
        return None if kept is None else self._kind.model_validate_json(kept)


class MemoryLimits:
    """Rates and slots in memory.

    Taking all limits of a key and its team takes some 2 us, and settling them takes 1 us.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start with nothing in use. `clock` returns seconds and never goes back."""
        self._clock = clock
        self._free_us: dict[str, int] = {}
        """When nothing of each rate is in use any more, by the clock."""
        self._slots: dict[str, set[str]] = {}
        """The requests that hold slots of each limit."""
        self._clean_at = FIRST_CLEANING

    def take_now(self, holder: str, demands: Sequence[LimitDemand]) -> list[int]:
        """Do what `take` does, at once."""
        now_us = int(self._clock() * 1e6)
        used, is_admitted = [], True
        for name, most, cost_us in demands:
            if cost_us is None:
                use = len(self._slots.get(name, ()))
            else:
                use = max(0, self._free_us.get(name, 0) - now_us)
            used.append(use)
            if use > most:
                is_admitted = False
        if is_admitted:
            for (name, _, cost_us), use in zip(demands, used, strict=True):
                if cost_us is None:
                    self._slots.setdefault(name, set()).add(holder)
                else:
                    self._free_us[name] = now_us + min(use + cost_us, MAX_USE_US)
        if len(self._free_us) >= self._clean_at:
            self._free_us = {name: us for name, us in self._free_us.items() if us > now_us}
            self._clean_at = max(FIRST_CLEANING, 2 * len(self._free_us))
        return used

    def settle_now(self, corrections: Iterable[Correction]) -> None:
        """Do what `settle` does, at once."""
        now_us = int(self._clock() * 1e6)
        for name, cost_us, holder in corrections:
            if cost_us is not None:
                use = max(0, self._free_us.get(name, 0) - now_us) + cost_us
                self._free_us[name] = now_us + min(use, MAX_USE_US)
                continue
            slots = self._slots.get(name)
            if slots is not None:
                slots.discard(holder)
                if not slots:
                    del self._slots[name]


class MemoryStore(Store):
    """The memory of this process."""

    is_shared: ClassVar[bool] = False

    def __init__(self, limits: StoreLimits, clock: Callable[[], float] = time.monotonic) -> None:
        """Start empty. `clock` returns seconds and never goes back."""
        self._limits = limits
        self._clock = clock
        self.limits_in_use = MemoryLimits(clock)
        self.kept: dict[str, ExpiringMap[str, bytes]] = {}
        """The records of each kind."""
        self._ends_s: dict[str, float] = {}
        self._rejections: set[str] = set()

    def records(self, kind: type[R]) -> LocalRecords[R]:
        """Return the records of one kind."""
        return LocalRecords(kind, self._of_kind(kind.kind, kind.max_mean_bytes))

    def _of_kind(self, kind: str, max_mean_bytes: int = MAX_MEAN_BYTES) -> ExpiringMap[str, bytes]:
        if kind not in self.kept:
            retention = self._limits.of(kind)
            self.kept[kind] = ExpiringMap(
                ttl_s=retention.ttl_s,
                max_entries=retention.max_records,
                clock=self._clock,
                max_mean_bytes=max_mean_bytes,
            )
        return self.kept[kind]

    async def put(self, kind: str, record_id: str, text: bytes, owner: str | None) -> None:
        """Keep a record."""
        self._of_kind(kind).keep(record_id, text, len(record_id) + len(text), owner)

    async def add(self, kind: str, record_id: str, text: bytes, owner: str | None) -> bool:
        """Keep a record if its id is new, and return whether it was."""
        is_new = self._of_kind(kind).find(record_id) is None
        if is_new:
            await self.put(kind, record_id, text, owner)
        return is_new

    async def get(self, kind: str, record_id: str) -> bytes | None:
        """Return a record that has not expired."""
        return self._of_kind(kind).find(record_id)

    async def cool_downs(self, deployment_ids: Collection[str]) -> Mapping[str, CoolDown]:
        """Return the cool-downs of these deployments."""
        now_s = self._clock()
        self._ends_s = {name: end_s for name, end_s in self._ends_s.items() if end_s > now_s}
        found = {name: self._ends_s[name] for name in deployment_ids if name in self._ends_s}
        return {name: CoolDown(end_s, end_s - now_s) for name, end_s in found.items()}

    async def is_rejected(self, release_key: str) -> bool:
        """Return whether a release was rejected here."""
        return release_key in self._rejections

    async def cool_down(self, deployment_id: str, duration_s: float) -> None:
        """Start a cool-down, or extend one that ends earlier."""
        end_s = self._clock() + duration_s
        self._ends_s[deployment_id] = max(end_s, self._ends_s.get(deployment_id, end_s))

    async def reject(self, release_key: str, reason: str) -> None:  # noqa: ARG002
        """Record a rejection; the log has its reason."""
        self._rejections.add(release_key)

    async def take(self, holder: str, demands: Sequence[LimitDemand]) -> Sequence[int]:
        """Take all of these, or nothing, and return what was in use before."""
        return self.limits_in_use.take_now(holder, demands)

    async def settle(self, corrections: Sequence[Correction]) -> None:
        """Correct rates and free slots."""
        self.limits_in_use.settle_now(corrections)

    async def aclose(self) -> None:
        """Drop all records."""
        self.kept.clear()
