"""Keeps requests free of the store: writes go beside them, and failures stop here."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Generic, TypeVar

from router_service.core.errors import StoreError
from router_service.store.base import R, RecordStore
from router_service.store.local import MemoryStore

MAX_WRITES_IN_FLIGHT = 100
"""With the timeouts of Redis this is 500 writes a second that fail, and more that succeed."""

DRAIN_TIMEOUT_S = 1.0

A = TypeVar("A")
T = TypeVar("T")
_log = logging.getLogger("switchcraft.store")


class GuardedStore(Generic[R]):
    """A store that never holds up a request; `on_error` is called for each lost operation.

    One that has failed is left alone for a while: a slow one would cost more than one that is dead.
    """

    def __init__(
        self,
        store: RecordStore[R],
        on_error: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Guard a store; `on_error` gets `put`, `add`, `get`, `overflow` or `pause`."""
        self._store = store
        self._on_error = on_error
        self._clock = clock
        self._backoff = Backoff()
        self._writes: set[asyncio.Task[None]] = set()
        self.is_reachable = True
        """Whether the last operation reached the store."""

    def save(self, record: R, *, is_new: bool = False) -> None:
        """Write a record in the background; it is lost in a pause, or with too many under way.

        If it `is_new`, one that is there under its id stays. Memory is written to at once: there is
        nothing that a task would wait for.
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
        operation = self._store.add if is_new else self._store.put
        write = asyncio.create_task(self._write("add" if is_new else "put", operation, record))
        self._writes.add(write)
        write.add_done_callback(self._writes.discard)

    async def put(self, record: R) -> None:
        """Write a record and wait for it; raises StoreError as `get` does."""
        await self._attempt("put", self._store.put, record)

    async def add(self, record: R) -> bool:
        """Write a record where there is none of its id; raises StoreError as `get` does."""
        return await self._attempt("add", self._store.add, record)

    async def get(self, record_id: str) -> R | None:
        """Return a record, or None; raises StoreError, at once while the store is left alone."""
        return await self._attempt("get", self._store.get, record_id)

    async def _attempt(self, name: str, operation: Callable[[A], Awaitable[T]], argument: A) -> T:
        if self._backoff.is_pausing(self._clock()):
            self._on_error("pause")
            raise StoreError("be asked", "it failed a moment ago; try again soon")
        return await self._ask(name, operation, argument)

    async def _ask(self, name: str, operation: Callable[[A], Awaitable[T]], argument: A) -> T:
        try:
            result = await operation(argument)
        except StoreError as exc:
            self._failed(name, exc)
            raise
        self._succeeded()
        return result

    async def aclose(self) -> None:
        """Wait a moment for the writes under way, then let go of the store."""
        if self._writes:
            await asyncio.wait(self._writes, timeout=DRAIN_TIMEOUT_S)
        for write in self._writes:
            write.cancel()
        try:
            await self._store.aclose()
        except StoreError as exc:
            self._failed("close", exc)

    async def _write(
        self, name: str, operation: Callable[[R], Awaitable[object]], record: R
    ) -> None:
        with suppress(StoreError):
            await self._ask(name, operation, record)

    def _failed(self, operation: str, exc: StoreError) -> None:
        self._on_error(operation)
        self._backoff.failed(self._clock())
        if self.is_reachable:
            _log.warning("the store is away, requests go on without it: %s", exc)
        self.is_reachable = False

    def _succeeded(self) -> None:
        self._backoff.succeeded()
        if not self.is_reachable:
            _log.warning("the store is back")
        self.is_reachable = True


FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 5.0


class Backoff:
    """Pauses that double with every failure in a row, and end with the first success."""

    def __init__(self) -> None:
        self._pause_s = 0.0
        self._until_s = 0.0

    def is_pausing(self, now_s: float) -> bool:
        """Whether the store is to be left alone; `now_s` is of a clock that never goes back."""
        return now_s < self._until_s

    def failed(self, now_s: float) -> None:
        """Note a failure. Those of operations that were under way together count as one."""
        if self.is_pausing(now_s):
            return
        self._pause_s = min(LONGEST_PAUSE_S, self._pause_s * 2 or FIRST_PAUSE_S)
        self._until_s = now_s + self._pause_s

    def succeeded(self) -> None:
        """Note a success."""
        self._pause_s = self._until_s = 0.0
