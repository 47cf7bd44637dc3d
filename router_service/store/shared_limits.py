"""Limits that replicas share, or those of this process while the store is unreachable."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from router_service.core.errors import StoreError
from router_service.store.memory import MemoryLimits, MemoryStore
from router_service.store.records import DRAIN_TIMEOUT_S, Reachability
from router_service.store.store import Correction, LimitDemand, Store, fits

MAX_UNSENT = 10_000
"""Largest number of slots that are still to be freed when the store is back."""


class SharedLimits:
    """Guard around the limits in a store, so that failures of the store refuse no request.

    After a failure the store is not used for a while, because waiting for a slow store would cost
    more than doing without it. Meanwhile the limits hold in this process only. Corrections are sent
    in the background, one message after another. If the store fails, those of rates are lost, and
    those that free slots are sent when it is back. A store in memory is used directly.
    """

    def __init__(
        self,
        store: Store,
        on_error: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Guard a store; `on_error` is called with `limit` for each operation that failed."""
        self._store = store
        self._is_local = not store.is_shared
        self._own = MemoryLimits(clock)
        if isinstance(store, MemoryStore) and not store.is_shared:
            self._own = store.limits_in_use
        self._on_error = on_error
        self._clock = clock
        self._reach = Reachability("store", "limits hold in each process by itself")
        self._taken_here: set[str] = set()
        """Requests that were admitted by the limits of this process, because the store failed."""
        self._unsent: list[Correction] = []
        self._sending: asyncio.Task[None] | None = None

    async def take(self, holder: str, demands: Sequence[LimitDemand]) -> Sequence[int]:
        """Take all of these if all fit, and otherwise nothing; return what was in use before.

        `holder` is the request, which must call `settle` if everything was taken.
        """
        if self._is_local:
            return self._own.take_now(holder, demands)
        used = await self._take_shared(holder, demands)
        if used is None:
            used = self._own.take_now(holder, demands)
            if fits(demands, used):
                self._taken_here.add(holder)
        return used

    def settle(self, holder: str, corrections: Sequence[Correction]) -> None:
        """Correct the rates and free the slots of a request that has ended; returns at once."""
        if self._is_local or holder in self._taken_here:
            self._taken_here.discard(holder)
            self._own.settle_now(corrections)
        else:
            self._send_later(corrections)

    async def aclose(self) -> None:
        """Wait at most `DRAIN_TIMEOUT_S` for the corrections in flight."""
        if self._sending is not None:
            await asyncio.wait([self._sending], timeout=DRAIN_TIMEOUT_S)
            self._sending.cancel()

    async def _take_shared(
        self, holder: str, demands: Sequence[LimitDemand]
    ) -> Sequence[int] | None:
        """Take from the store; return None if it fails or failed a moment ago."""
        if self._reach.is_pausing(self._clock()):
            return None
        self._send_later(())
        try:
            used = await self._store.take(holder, demands)
        except (StoreError, asyncio.CancelledError) as exc:
            # The store may have carried out what nobody waits for any more.
            slots = [demand.name for demand in demands if demand.cost_us is None]
            self._send_later([Correction(name, None, holder) for name in slots])
            if isinstance(exc, asyncio.CancelledError):
                raise
            self._record_failure(exc)
            return None
        self._reach.record_success()
        return used

    def _send_later(self, corrections: Sequence[Correction]) -> None:
        self._unsent += corrections
        if self._unsent and (self._sending is None or self._sending.done()):
            self._sending = asyncio.create_task(self._send())

    async def _send(self) -> None:
        """Send the corrections that wait; stop if the store fails, and then keep those of slots."""
        while self._unsent and not self._reach.is_pausing(self._clock()):
            corrections, self._unsent = self._unsent, []
            try:
                await self._store.settle(corrections)
            except StoreError as exc:
                self._unsent = corrections + self._unsent
                self._record_failure(exc)
            else:
                self._reach.record_success()
        slots = [each for each in self._unsent if each.cost_us is None]
        self._unsent = slots[-MAX_UNSENT:]

    def _record_failure(self, exc: StoreError) -> None:
        self._on_error("limit")
        self._reach.record_failure(self._clock(), exc)
