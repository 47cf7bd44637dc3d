"""Callers share permits fairly, and no permit is lost."""

from __future__ import annotations

import asyncio
import random

import pytest

from router_service.core.sharing import FAIR_SHARE, FairSemaphore

pytestmark = pytest.mark.anyio


async def settle() -> None:
    """Let every task that can go on do so."""
    for _ in range(3):
        await asyncio.sleep(0)


@pytest.mark.parametrize("count", [4, 100, 500])
def test_a_busy_caller_leaves_permits_to_others(count: int) -> None:
    """One caller gets three quarters, the next one gets three quarters of the rest."""
    permits = FairSemaphore(count, leaves_room=True)
    while permits.try_acquire("busy"):
        pass
    assert permits.held["busy"] == count * FAIR_SHARE // (FAIR_SHARE + 1)
    assert permits.try_acquire("other")


async def test_a_free_permit_goes_to_the_caller_with_fewest() -> None:
    """However many of a busy caller's wait, another caller's wait ends first."""
    permits, served = FairSemaphore(2, leaves_room=True), list[str]()

    async def acquire(caller: str) -> None:
        await permits.acquire(caller)
        served.append(caller)

    names = ["busy", "busy", "busy", "busy", "other", "third"]
    tasks = [asyncio.create_task(acquire(name)) for name in names]
    await settle()
    assert served == ["busy", "busy"]
    for _ in range(4):
        permits.release(served[-1])
        await settle()
    assert served[2:] == ["other", "third", "busy", "busy"]
    await asyncio.gather(*tasks)


@pytest.mark.parametrize("seed", range(3))
async def test_no_permit_is_lost_by_cancelled_waits(seed: int) -> None:
    """After any order of taking, cancelling, refusing and giving back, all permits are free."""
    chance = random.Random(seed)

    async def use(permits: FairSemaphore, caller: str) -> None:
        await permits.acquire(caller)
        try:
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
        finally:
            permits.release(caller)

    permits = FairSemaphore(3, leaves_room=chance.random() < 0.5)
    tasks = list[asyncio.Task[None]]()
    for _ in range(200):
        tasks.append(asyncio.create_task(use(permits, chance.choice("abc"))))
        if chance.random() < 0.3:
            chance.choice(tasks).cancel()
        if chance.random() < 0.1 and permits.waiting:
            permits.refuse_last(permits.longest_queue(), RuntimeError("refused"))
        if chance.random() < 0.5:
            await asyncio.sleep(0)
    await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
    assert (permits.free, permits.waiting, dict(permits.held)) == (3, 0, {})
