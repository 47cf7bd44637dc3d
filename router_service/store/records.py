"""Interfaces and in-memory stores for records and shared state, and a guard around a store.

`GuardedStore.save` never delays a request: it writes in the background, and failures do not reach
the request.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Generic, Protocol, TypeVar

from pydantic_core import to_json

from router_service.core.decision_record import StoredRecord
from router_service.core.errors import StoreError
from router_service.core.releases import MAX_POINTER_BYTES, POINTER_FILE
from router_service.core.resources import ENTRY_BYTES

MAX_WRITES_IN_FLIGHT = 100
"""Largest number of concurrent writes. With the timeouts for Redis, this allows 500 writes per
second if all fail, and more if they succeed."""

DRAIN_TIMEOUT_S = 1.0
"""How long `aclose` waits for writes in flight."""

MAX_MEAN_BYTES = 4096
"""Largest mean size of the entries of a map in memory, unless the map has a lower limit."""

FIRST_PAUSE_S = 0.5
"""Pause after the first failure of a store."""

LONGEST_PAUSE_S = 5.0

_log = logging.getLogger("switchcraft.store")

R = TypeVar("R", bound=StoredRecord)
A = TypeVar("A")
T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class UpstreamObject(StoredRecord):
    """An object that an upstream stores, such as a response, a file or a conversation.

    Its id is the one that clients use.
    """

    kind: ClassVar[str] = "response"

    model: str
    """The pool's model that created it."""
    deployment_id: str
    """The deployment that stores it."""
    owner: str | None = None
    """Name of the API key that created it; None without keys, or in records of older versions."""

    @property
    def caller(self) -> str | None:
        """The API key that created it."""
        return self.owner


class FeedbackMark(StoredRecord):
    """A mark for a decision that has had feedback, so that metrics count it once."""

    kind: ClassVar[str] = "feedback"


class RememberedCall(StoredRecord):
    """A tool call of an answer, to be compared with the conversation's next turn.

    The id is a hash of the call's own id and of its owner.
    """

    kind: ClassVar[str] = "call"

    decision_id: str
    arm: str
    tool: str
    """The tool's name, or a hash of it if content is not kept."""
    arguments_sha256: str


class EvidenceMark(StoredRecord):
    """A mark for a call with evidence that it was wrong, so that the call is counted once."""

    kind: ClassVar[str] = "evidence"


class RecordStore(Protocol[R]):
    """Store for records of one kind, which expire. Each operation raises StoreError."""

    async def put(self, record: R) -> None:
        """Keep a record under its id."""

    async def add(self, record: R) -> bool:
        """Keep a record if its id is new, and return whether it was."""

    async def get(self, record_id: str) -> R | None:
        """Return a record, or None if it is unknown or has expired."""

    async def aclose(self) -> None:
        """Close the connections."""


@dataclass(frozen=True, slots=True)
class CoolDown:
    """A cool-down of a deployment that a replica has started."""

    end_s: float
    """When it ends, by the shared state's own clock. It identifies the cool-down."""
    left_s: float
    """Seconds until it ends."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The part of the shared state that a gateway has asked for, at one moment."""

    cool_downs: Mapping[str, CoolDown] = field(default_factory=dict)
    """Cool-downs that have not ended, by deployment."""
    publication: bytes | None = None
    """The pointer's text (see `core.releases`), cut one byte after `MAX_POINTER_BYTES`, or None if
    nothing is published."""


class SharedState(Protocol):
    """State that replicas share. Every operation raises StoreError if the state is unreachable."""

    async def read(self, deployment_ids: Collection[str]) -> Snapshot:
        """Return the pointer and the cool-downs of these deployments, in one round trip."""

    async def is_rejected(self, release_key: str) -> bool:
        """Return whether a replica has rejected a release."""

    async def cool_down(self, deployment_id: str, duration_s: float) -> None:
        """Start a cool-down. Of two cool-downs, the one that ends later counts.

        A cool-down cannot be ended early: while it lasts, the deployment gets no request, so
        nothing can show that the deployment has recovered.
        """

    async def reject(self, release_key: str, reason: str) -> None:
        """Reject a release, so that no replica tries it again."""

    async def aclose(self) -> None:
        """Close the connections."""


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

    async def aclose(self) -> None:
        """Drop all records."""
        self._records.clear()


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


def read_pointer(directory: Path) -> bytes | None:
    """Return the text of the pointer, the file that names the published releases.

    Return None if nothing is published. Raise StoreError. A longer text than allowed is cut one
    byte after the limit, so that parsing it fails.
    """
    try:
        with (directory / POINTER_FILE).open("rb") as file:
            return file.read(MAX_POINTER_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise StoreError("read the publication", f"{directory}: {exc.strerror}") from exc


class GuardedStore(Generic[R]):
    """Guard around a store, so that failures of the store do not delay requests.

    After a failure the store is not used for a while, because waiting for a slow store would cost
    more than doing without it.
    """

    def __init__(
        self,
        store: RecordStore[R],
        on_error: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Guard a store.

        `on_error` is called for each lost operation, with its name (`put`, `add`, `get`, `close`)
        if it failed, or with the reason why it was not tried (`overflow`, `pause`).
        """
        self._store = store
        self._on_error = on_error
        self._clock = clock
        self._backoff = Backoff()
        self._writes: set[asyncio.Task[None]] = set()
        self.is_reachable = True
        """Whether the last operation reached the store."""

    def save(self, record: R, *, is_new: bool = False) -> None:
        """Write a record in the background.

        The record is lost during a pause, or if too many writes are in flight. If `is_new` is true,
        an existing record with the same id is kept. A store in memory is written immediately,
        because there is nothing to wait for.
        """
        if isinstance(self._store, MemoryStore):
            if not is_new or self._store.find(record.id) is None:
                self._store.keep(record)
            return
        if self._backoff.is_pausing(self._clock()):
            self._on_error("pause")
            return
        if len(self._writes) >= MAX_WRITES_IN_FLIGHT:
            self._on_error("overflow")
            return

        async def write_record() -> None:
            with suppress(StoreError):  # already counted and logged
                if is_new:
                    await self._run("add", self._store.add, record)
                else:
                    await self._run("put", self._store.put, record)

        write = asyncio.create_task(write_record())
        self._writes.add(write)
        write.add_done_callback(self._writes.discard)

    async def put(self, record: R) -> None:
        """Write a record and wait for it. Raise StoreError as `get` does."""
        await self._attempt("put", self._store.put, record)

    async def add(self, record: R) -> bool:
        """Write a record if its id is new. Raise StoreError as `get` does."""
        return await self._attempt("add", self._store.add, record)

    async def get(self, record_id: str) -> R | None:
        """Return a record, or None. Raise StoreError, and do so at once during a pause."""
        return await self._attempt("get", self._store.get, record_id)

    async def aclose(self) -> None:
        """Wait at most `DRAIN_TIMEOUT_S` for the writes in flight, then close the store."""
        if self._writes:
            await asyncio.wait(self._writes, timeout=DRAIN_TIMEOUT_S)
        for write in self._writes:
            write.cancel()
        try:
            await self._store.aclose()
        except StoreError as exc:
            self._record_failure("close", exc)

    async def _attempt(self, name: str, operation: Callable[[A], Awaitable[T]], argument: A) -> T:
        if self._backoff.is_pausing(self._clock()):
            self._on_error("pause")
            raise StoreError("be used", "it failed a moment ago")
        return await self._run(name, operation, argument)

    async def _run(self, name: str, operation: Callable[[A], Awaitable[T]], argument: A) -> T:
        try:
            result = await operation(argument)
        except StoreError as exc:
            self._record_failure(name, exc)
            raise
        self._backoff.record_success()
        if not self.is_reachable:
            _log.warning("the store is reachable again")
        self.is_reachable = True
        return result

    def _record_failure(self, operation: str, exc: StoreError) -> None:
        self._on_error(operation)
        self._backoff.record_failure(self._clock())
        if self.is_reachable:
            _log.warning('store unreachable, requests are served without it: cause="%s"', exc)
        self.is_reachable = False


class Backoff:
    """Pauses that double with every consecutive failure, and end with the first success."""

    def __init__(self) -> None:
        self._pause_s = 0.0
        self._until_s = 0.0

    def is_pausing(self, now_s: float) -> bool:
        """Return whether the store must not be used. `now_s` is the time of a monotonic clock."""
        return now_s < self._until_s

    def record_failure(self, now_s: float) -> None:
        """Record a failure. Failures of concurrent operations count as one."""
        if self.is_pausing(now_s):
            return
        self._pause_s = min(LONGEST_PAUSE_S, self._pause_s * 2 or FIRST_PAUSE_S)
        self._until_s = now_s + self._pause_s

    def record_success(self) -> None:
        """End the pauses."""
        self._pause_s = self._until_s = 0.0
