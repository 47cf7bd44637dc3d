"""The kinds of records besides decisions, and a guard around a store.

`Records.save` never delays a request: it writes in the background, and failures do not reach
the request.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import ClassVar, Generic, TypeAlias, TypeVar

from pydantic import ValidationError

from router_service.core.decision_record import Storable, StoredRecord
from router_service.core.errors import StoreError
from router_service.store.memory import LocalRecords, MemoryStore, R
from router_service.store.store import Store

MAX_WRITES_IN_FLIGHT = 100
"""Largest number of concurrent writes. With the timeouts for Redis, this allows 500 writes per
second if all fail, and more if they succeed."""

DRAIN_TIMEOUT_S = 1.0
"""How long `aclose` waits for writes in flight."""

FIRST_PAUSE_S = 0.5
"""Pause after the first failure of a store."""

LONGEST_PAUSE_S = 5.0

_log = logging.getLogger("switchcraft.store")

T = TypeVar("T")
Write: TypeAlias = Callable[[str, str, bytes, str | None], Awaitable[T]]
"""A method of `Store` that writes a record."""


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
    answered: tuple[int, str | None, str | None, str, str] | None = None
    """The `telemetry.usage.UsageEntry` of the request; None in records of older versions."""


class EvidenceMark(StoredRecord):
    """A mark for a call with evidence that it was wrong, so that the call is counted once."""

    kind: ClassVar[str] = "evidence"


class Records(Generic[R]):
    """Records of one kind in a store, whose failures do not delay requests.

    After a failure the store is not used for a while, because waiting for a slow store would cost
    more than doing without it.
    """

    def __init__(
        self,
        store: Store,
        kind: type[R],
        on_error: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Use a store.

        `on_error` is called for each lost operation, with its name (`put`, `add`, `get`) if it
        failed, or with the reason why it was not tried (`overflow`, `pause`).
        """
        self._store = store
        self._local: LocalRecords[R] | None = None
        if isinstance(store, MemoryStore) and not store.is_shared:
            self._local = store.records(kind)
        self._kind = kind
        self._on_error = on_error
        self._clock = clock
        self._reach = Reachability("store", "requests are served without it")
        self._writes: set[asyncio.Task[None]] = set()

    @property
    def is_reachable(self) -> bool:
        """Whether the last operation reached the store."""
        return self._reach.is_reachable

    def save(self, record: Storable, *, is_new: bool = False) -> None:
        """Write a record in the background.

        The record is lost during a pause, or if too many writes are in flight. If `is_new` is true,
        an existing record with the same id is kept. A store in memory is written immediately,
        because there is nothing to wait for.
        """
        if self._local is not None:
            if not is_new or self._local.find(record.id) is None:
                self._local.keep(record)
            return
        if self._reach.is_pausing(self._clock()):
            self._on_error("pause")
            return
        if len(self._writes) >= MAX_WRITES_IN_FLIGHT:
            self._on_error("overflow")
            return

        async def write_record() -> None:
            with suppress(StoreError):  # already counted and logged
                await (self.add if is_new else self.put)(record)

        write = asyncio.create_task(write_record())
        self._writes.add(write)
        write.add_done_callback(self._writes.discard)

    async def put(self, record: Storable) -> None:
        """Write a record and wait for it. Raise StoreError as `get` does."""
        await self._write("put", self._store.put, record)

    async def add(self, record: Storable) -> bool:
        """Write a record if its id is new, and return whether it was. Raise StoreError."""
        return await self._write("add", self._store.add, record)

    async def get(self, record_id: str) -> R | None:
        """Return a record, or None if it is unknown or damaged.

        Raise StoreError, and do so at once during a pause.
        """
        with self._guarding("get"):
            text = await self._store.get(self._kind.kind, record_id)
        try:
            return None if text is None else self._kind.model_validate_json(text)
        except ValidationError as exc:  # a damaged record is not an outage of the store
            problem = exc.errors(include_input=False)[0]["msg"]
            kind = self._kind.kind
            _log.warning(
                'damaged record in the store is ignored: kind=%s cause="%s"', kind, problem
            )
            return None

    async def drain(self) -> None:
        """Wait at most `DRAIN_TIMEOUT_S` for the writes in flight."""
        if self._writes:
            await asyncio.wait(self._writes, timeout=DRAIN_TIMEOUT_S)
        for write in self._writes:
            write.cancel()

    async def _write(self, name: str, write: Write[T], record: Storable) -> T:
        with self._guarding(name):
            kind, text = self._kind.kind, record.stored_json()
            return await write(kind, record.id, text, record.caller)

    @contextmanager
    def _guarding(self, name: str) -> Iterator[None]:
        """Raise StoreError during a pause, and record whether the operation succeeds."""
        if self._reach.is_pausing(self._clock()):
            self._on_error("pause")
            raise StoreError("be used", "it failed a moment ago")
        try:
            yield
        except StoreError as exc:
            self._on_error(name)
            self._reach.record_failure(self._clock(), exc)
            raise
        self._reach.record_success()


class Reachability:
    """Whether a store answers, with pauses that double with every consecutive failure.

    A log line says when it is lost, and one when it is back.
    """

    def __init__(self, what: str, consequence: str) -> None:
        """Begin as reachable; messages are `WHAT unreachable, CONSEQUENCE: cause=...`."""
        self._what = what
        self._consequence = consequence
        self._pause_s = 0.0
        self._until_s = 0.0
        self.is_reachable = True
        """Whether the last operation succeeded."""

    def is_pausing(self, now_s: float) -> bool:
        """Return whether the store must not be used. `now_s` is the time of a monotonic clock."""
        return now_s < self._until_s

    def record_failure(self, now_s: float, exc: StoreError) -> None:
        """Record a failure. Failures of concurrent operations count as one."""
        if not self.is_pausing(now_s):
            self._pause_s = min(LONGEST_PAUSE_S, self._pause_s * 2 or FIRST_PAUSE_S)
            self._until_s = now_s + self._pause_s
        if self.is_reachable:
            _log.warning('%s unreachable, %s: cause="%s"', self._what, self._consequence, exc)
        self.is_reachable = False

    def record_success(self) -> None:
        """End the pauses."""
        self._pause_s = self._until_s = 0.0
        if not self.is_reachable:
            _log.warning("%s reachable again", self._what)
        self.is_reachable = True
