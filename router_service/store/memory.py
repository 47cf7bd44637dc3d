"""Decisions in this process's memory, for a gateway of one replica."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from router_service.store.base import DecisionRecord


class MemoryStore:
    """Keeps the last `max_records` decisions, for `ttl_s` seconds at most."""

    def __init__(self, *, ttl_s: float, max_records: int, clock: Callable[[], float]) -> None:
        """Keep none yet; `clock` returns seconds and never goes back."""
        self._ttl_s = ttl_s
        self._max_records = max_records
        self._clock = clock
        self._records: OrderedDict[str, tuple[float, DecisionRecord]] = OrderedDict()

    async def put(self, record: DecisionRecord) -> None:
        """Keep a record; the oldest ones go where there are too many."""
        self._records[record.id] = (self._clock() + self._ttl_s, record)
        self._records.move_to_end(record.id)
        while len(self._records) > self._max_records:
            self._records.popitem(last=False)

    async def get(self, decision_id: str) -> DecisionRecord | None:
        """Return a record that has not expired."""
        expires, record = self._records.get(decision_id, (0.0, None))
        if record is not None and self._clock() >= expires:
            del self._records[decision_id]
            return None
        return record

    async def aclose(self) -> None:
        """Forget all records."""
        self._records.clear()
