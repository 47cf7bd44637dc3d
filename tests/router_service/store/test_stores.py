"""Stores keep records until they expire, and never delay requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from router_service.core.decision_record import DecisionRecord
from router_service.core.errors import StoreError
from router_service.store.backends import RecordStore
from router_service.store.memory import MAX_MEAN_BYTES, MemoryStore
from router_service.store.records import (
    FIRST_PAUSE_S,
    MAX_WRITES_IN_FLIGHT,
    GuardedStore,
)
from tests.clock import Clock


def record(name: str = "dec_1") -> DecisionRecord:
    """Return a record with fields of every kind."""
    return DecisionRecord(
        id=name,
        created=1.5,
        model="m",
        reason="threshold",
        probabilities={"a": 0.25},
        stream=False,
        status=200,
        ending="complete",
        latency_s=0.1,
    )


class Unreliable:
    """A store that fails on demand, and may take forever."""

    def __init__(self) -> None:
        self.is_away = False
        self.hangs = False
        self.kept: list[DecisionRecord] = []

    async def put(self, record: DecisionRecord) -> None:
        """Keep a record, or fail."""
        if self.hangs:
            await asyncio.Event().wait()
        self._check()
        self.kept.append(record)

    async def add(self, record: DecisionRecord) -> bool:
        """Keep a record that is new, or fail."""
        is_new = await self.get(record.id) is None
        if is_new:
            await self.put(record)
        return is_new

    async def get(self, decision_id: str) -> DecisionRecord | None:
        """Return a record, or fail."""
        self._check()
        return next((kept for kept in self.kept if kept.id == decision_id), None)

    async def aclose(self) -> None:
        """Do nothing."""

    def _check(self) -> None:
        if self.is_away:
            raise StoreError("do it", "it is away")


def test_one_keys_records_do_not_push_out_those_of_others() -> None:
    """If there are too many, the oldest record of the key with most is dropped."""
    store: MemoryStore[DecisionRecord] = MemoryStore(
        DecisionRecord, ttl_s=60, max_records=10, clock=Clock()
    )
    mine = [record(f"mine{i}").model_copy(update={"key": "quiet"}) for i in range(3)]
    flood = [record(f"flood{i}").model_copy(update={"key": "busy"}) for i in range(50)]
    for each in (*mine[:1], *flood[:30], *mine[1:], *flood[30:]):
        store.keep(each)
    assert [store.find(each.id) for each in mine] == mine
    assert [i for i, each in enumerate(flood) if store.find(each.id)] == list(range(43, 50))


def guarded(
    check: Callable[[Unreliable, GuardedStore[DecisionRecord], list[str]], object],
    clock: Clock | None = None,
) -> None:
    """Run a check with a guarded store and the list of its lost operations."""

    async def run() -> None:
        store, lost = Unreliable(), list[str]()
        guard = GuardedStore(
            cast("RecordStore[DecisionRecord]", store), lost.append, clock or Clock()
        )
        await cast("asyncio.Future[None]", check(store, guard, lost))
        await guard.aclose()

    asyncio.run(run())


def test_a_failed_store_is_not_used_during_the_pause() -> None:
    """Nothing is tried during the pause, and a look-up fails at once.

    Afterwards all is as before.
    """
    clock = Clock()

    async def check(
        store: Unreliable, guard: GuardedStore[DecisionRecord], lost: list[str]
    ) -> None:
        store.is_away = True
        guard.save(record())
        await asyncio.sleep(0)
        store.is_away = False
        guard.save(record())
        with pytest.raises(StoreError):
            await guard.get("dec_1")
        assert lost == ["put", "pause", "pause"]
        clock.now_s += FIRST_PAUSE_S
        guard.save(record())
        await asyncio.sleep(0)
        assert await guard.get("dec_1") == record()

    guarded(check, clock)


def test_writes_in_flight_are_bounded() -> None:
    """If a store hangs, further writes are counted as lost."""

    async def check(
        store: Unreliable, guard: GuardedStore[DecisionRecord], lost: list[str]
    ) -> None:
        store.hangs = True
        for _ in range(MAX_WRITES_IN_FLIGHT + 3):
            guard.save(record())
        assert lost == ["overflow"] * 3

    guarded(check)


def test_memory_is_limited_by_bytes_and_time_too() -> None:
    """Large records leave less room for others, and expired ones are dropped."""
    clock = Clock()
    store: MemoryStore[DecisionRecord] = MemoryStore(
        DecisionRecord, ttl_s=10, max_records=10, clock=clock
    )
    large = record("large").model_copy(update={"reason": "x" * 5 * MAX_MEAN_BYTES})
    for number in range(5):
        store.keep(record(f"small {number}"))
    store.keep(large)
    assert 5 * MAX_MEAN_BYTES < store.size_bytes <= store.max_bytes == 10 * MAX_MEAN_BYTES
    store.keep(large.model_copy(update={"id": "also large"}))
    assert store.find("large") is None
    assert store.find("also large") is not None
    clock.now_s += 11
    store.keep(record())
    assert 0 < store.size_bytes < 1000
    assert store.find("also large") is None
    store.keep(record())
    assert 0 < store.size_bytes < 1000
