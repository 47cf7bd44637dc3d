"""Callers share places fairly, and no place is lost."""

from __future__ import annotations

import asyncio
import random

import pytest

from router_service.core.sharing import FAIR_SHARE, Places


async def settle() -> None:
    """Let every task that can go on do so."""
    for _ in range(3):
        await asyncio.sleep(0)


@pytest.mark.parametrize("count", [4, 100, 500])
def test_a_busy_caller_leaves_places_to_others(count: int) -> None:
    """One caller gets three quarters, the next one gets three quarters of the rest."""
    places = Places(count, leaves_room=True)
    while places.try_take("busy"):
        pass
    assert places.taken["busy"] == count * FAIR_SHARE // (FAIR_SHARE + 1)
    assert places.try_take("other")


def test_a_free_place_goes_to_the_caller_with_fewest() -> None:
    """However many of a busy caller's wait, another caller's wait ends first."""

    async def test() -> None:
        places, served = Places(2, leaves_room=True), list[str]()

        async def take(caller: str) -> None:
            await places.take(caller)
            served.append(caller)

        names = ["busy", "busy", "busy", "busy", "other", "third"]
        tasks = [asyncio.create_task(take(name)) for name in names]
        await settle()
        assert served == ["busy", "busy"]
        for _ in range(4):
            places.give_back(served[-1])
            await settle()
        assert served[2:] == ["other", "third", "busy", "busy"]
        await asyncio.gather(*tasks)

    asyncio.run(test())


def test_places_grow_with_what_others_give_back() -> None:
    """A caller at its share goes on waiting, and is served when enough is free again."""

    async def test() -> None:
        places = Places(4, leaves_room=True)
        for caller in ("busy", "busy", "other", "third"):
            assert places.try_take(caller)
        waiting = [asyncio.create_task(places.take("busy")) for _ in range(2)]
        await settle()
        places.give_back("other")
        await settle()
        assert [task.done() for task in waiting] == [True, False]
        places.give_back("third")
        await settle()
        assert not waiting[1].done()  # 3 of 4 are its share
        places.give_back("busy")
        await asyncio.wait_for(waiting[1], 5)
        assert (places.free, places.taken["busy"]) == (1, 3)

    asyncio.run(test())


@pytest.mark.parametrize("seed", range(20))
def test_no_place_is_lost_by_cancelled_waits(seed: int) -> None:
    """After any order of taking, cancelling, refusing and giving back, all places are free."""
    chance = random.Random(seed)

    async def use(places: Places, caller: str) -> None:
        await places.take(caller)
        try:
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
        finally:
            places.give_back(caller)

    async def test() -> None:
        places = Places(3, leaves_room=chance.random() < 0.5)
        tasks = list[asyncio.Task[None]]()
        for _ in range(200):
            tasks.append(asyncio.create_task(use(places, chance.choice("abc"))))
            if chance.random() < 0.3:
                chance.choice(tasks).cancel()
            if chance.random() < 0.1 and places.waiting:
                places.refuse_last(places.busiest(), RuntimeError("refused"))
            if chance.random() < 0.5:
                await asyncio.sleep(0)
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
        assert (places.free, places.waiting, dict(places.taken)) == (3, 0, {})

    asyncio.run(test())
