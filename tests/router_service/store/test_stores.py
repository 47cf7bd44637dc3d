"""Stores keep records until they expire, and never delay requests."""

from __future__ import annotations

import asyncio

import pytest

from router_service.core.decision_record import DecisionRecord
from router_service.core.errors import StoreError
from router_service.store.memory import MAX_MEAN_BYTES, LocalRecords, MemoryStore
from router_service.store.records import (
    FIRST_PAUSE_S,
    MAX_WRITES_IN_FLIGHT,
    Records,
)
from router_service.store.store import Retention, StoreLimits
from tests.clock import Clock
from tests.stores import RemoteStore


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


def memory(clock: Clock, ttl_s: int = 60) -> LocalRecords[DecisionRecord]:
    """Return room for ten records."""
    return MemoryStore(StoreLimits(Retention(ttl_s, 10)), clock).records(DecisionRecord)


def test_one_keys_records_do_not_push_out_those_of_others() -> None:
    """If there are too many, the oldest record of the key with most is dropped."""
    store = memory(Clock())
    mine = [record(f"mine{i}").model_copy(update={"key": "quiet"}) for i in range(3)]
    flood = [record(f"flood{i}").model_copy(update={"key": "busy"}) for i in range(50)]
    for each in (*mine[:1], *flood[:30], *mine[1:], *flood[30:]):
        store.keep(each)
    assert [store.find(each.id) for each in mine] == mine
    assert [i for i, each in enumerate(flood) if store.find(each.id)] == list(range(43, 50))


@pytest.mark.anyio
async def test_a_failed_store_is_not_used_during_the_pause() -> None:
    """Nothing is tried during the pause, and a look-up fails at once.

    Afterwards all is as before.
    """
    clock, lost = Clock(), list[str]()
    store = RemoteStore(clock)
    records = Records(store, DecisionRecord, lost.append, clock)
    store.is_away = True
    records.save(record())
    await asyncio.sleep(0)
    store.is_away = False
    records.save(record())
    with pytest.raises(StoreError):
        await records.get("dec_1")
    assert lost == ["put", "pause", "pause"]
    clock.now_s += FIRST_PAUSE_S
    records.save(record())
    await asyncio.sleep(0)
    assert await records.get("dec_1") == record()


@pytest.mark.anyio
async def test_writes_in_flight_are_bounded() -> None:
    """If a store hangs, further writes are counted as lost."""
    store, lost = RemoteStore(), list[str]()
    records = Records(store, DecisionRecord, lost.append)
    store.answers.clear()
    for _ in range(MAX_WRITES_IN_FLIGHT + 3):
        records.save(record())
    assert lost == ["overflow"] * 3
    store.answers.set()
    await records.drain()


def test_memory_is_limited_by_bytes_and_time_too() -> None:
    """Large records leave less room for others, and expired ones are dropped."""
    clock = Clock()
    kept = MemoryStore(StoreLimits(Retention(10, 10)), clock)
    store = kept.records(DecisionRecord)
    (held,) = kept.kept.values()
    large = record("large").model_copy(update={"reason": "x" * 5 * MAX_MEAN_BYTES})
    for number in range(5):
        store.keep(record(f"small {number}"))
    store.keep(large)
    assert 5 * MAX_MEAN_BYTES < held.size_bytes <= held.max_bytes == 10 * MAX_MEAN_BYTES
    store.keep(large.model_copy(update={"id": "also large"}))
    assert store.find("large") is None
    assert store.find("also large") is not None
    clock.now_s += 11
    store.keep(record())
    assert 0 < held.size_bytes < 1000
    assert store.find("also large") is None
    store.keep(record())
    assert 0 < held.size_bytes < 1000
