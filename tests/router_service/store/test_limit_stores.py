"""Every store keeps rates and slots alike, exactly, and all or nothing."""

from __future__ import annotations

import asyncio
import time

import hypothesis
import pytest
import redis
from hypothesis import strategies

from router_service.core.errors import StoreError
from router_service.store.memory import MemoryLimits
from router_service.store.opening import open_store
from router_service.store.store import MINUTE_US, SLOT_TTL_S, Correction, LimitDemand, Store, fits
from tests.clock import Clock
from tests.router_service.store.conftest import Replicas
from tests.stores import LIMITS

pytestmark = pytest.mark.anyio


def rate(name: str, amount: int, limit: int) -> LimitDemand:
    """Return what takes an amount of a rate of `limit` a minute."""
    most = MINUTE_US - min(amount, limit) * MINUTE_US // limit
    return LimitDemand(name, most, amount * MINUTE_US // limit)


def slot(name: str, limit: int) -> LimitDemand:
    """Return what takes a slot."""
    return LimitDemand(name, limit - 1, None)


async def takes(store: Store, holder: str, *demands: LimitDemand) -> bool:
    """Take all or nothing, and return whether all was taken."""
    return fits(demands, await store.take(holder, demands))


@hypothesis.given(
    limit=strategies.integers(1, 200),
    steps=strategies.lists(
        strategies.tuples(strategies.integers(1, 60), strategies.integers(0, 20_000_000)),
        max_size=60,
    ),
)
def test_no_window_exceeds_the_limit_and_the_burst(
    limit: int, steps: list[tuple[int, int]]
) -> None:
    """In every window, at most a full minute's amount and what is refilled meanwhile is admitted.

    Nothing is refused while the rule allows it.
    """
    clock = Clock()
    store = MemoryLimits(clock)
    start_us = int(clock.now_s * 1e6)
    now_us, admitted, level = start_us, [], 0.0
    for amount, pause_us in steps:
        now_us += pause_us
        clock.now_s = now_us / 1e6
        level = max(0.0, level - pause_us * limit / MINUTE_US)
        is_allowed = fits([it := rate("r", amount, limit)], store.take_now("a", [it]))
        room = limit - min(amount, limit)
        if abs(level - room) > 1e-3 * limit:  # within rounding, both are right
            assert is_allowed == (level < room)
        if is_allowed:
            level += amount
            admitted.append((now_us, amount))
    for first, (start, _) in enumerate(admitted):
        total = 0
        for end, amount in admitted[first:]:
            larger = max(0, amount - limit)  # a request beyond the limit comes alone
            total += amount
            rounding = len(admitted) * limit / MINUTE_US + 1e-6
            refilled = (end - start) * limit / MINUTE_US
            assert total - larger <= limit + refilled + rounding


async def test_a_request_takes_all_or_nothing(replicas: Replicas) -> None:
    """If one limit does not fit, the others stay as they were, and so do the slots."""
    async with replicas() as (one, other):
        mine, ours, slots = (f"{name}{id(one)}" for name in ("mine", "ours", "slots"))
        assert await takes(one, "a", rate(mine, 1, 100), rate(ours, 60, 60), slot(slots, 1))
        assert not await takes(other, "b", rate(mine, 1, 100), rate(ours, 1, 60))
        assert not await takes(one, "c", rate(mine, 1, 100), slot(slots, 1))
        used, in_use = await other.take(
            "d", [LimitDemand(mine, -1, 0), LimitDemand(slots, -1, None)]
        )
        assert used <= MINUTE_US // 100, "two refused requests took nothing"
        assert in_use == 1


async def test_concurrent_requests_of_replicas_never_exceed_a_limit(replicas: Replicas) -> None:
    """Of many requests at the same time, exactly as many are admitted as the limits allow."""
    async with replicas() as (one, other):
        name, slots = f"rate{id(one)}", f"parallel{id(one)}"
        both = (one, other) * 20
        taken = await asyncio.gather(
            *(takes(store, f"r{n}", rate(name, 1, 7)) for n, store in enumerate(both))
        )
        assert sum(taken) == 7
        taken = await asyncio.gather(
            *(takes(store, f"s{n}", slot(slots, 5)) for n, store in enumerate(both))
        )
        assert sum(taken) == 5


async def test_what_is_given_back_can_be_taken_again(replicas: Replicas) -> None:
    """A settlement frees slots and corrects rates in both directions; unknown ones are ignored."""
    async with replicas() as (one, other):
        name, slots = f"tokens{id(one)}", f"slots{id(one)}"
        minute = rate(name, 1000, 1000)
        assert await takes(one, "a", minute, slot(slots, 1))
        assert not await takes(other, "b", rate(name, 500, 1000))
        back = Correction(name, -900 * MINUTE_US // 1000, "a")
        await one.settle([back, Correction(slots, None, "a"), Correction(slots, None, "b")])
        assert await takes(other, "c", rate(name, 850, 1000), slot(slots, 1))
        assert not await takes(one, "d", rate(name, 500, 1000))
        await other.settle([Correction(name, 10 * MINUTE_US, "c")])
        (used,) = await one.take("e", [LimitDemand(name, -1, 0)])
        assert used > 10 * MINUTE_US
        await one.settle([Correction(name, -(10**12), "c")])
        assert await takes(one, "f", minute), "more than everything cannot be given back"


async def test_slots_of_a_process_that_ended_are_free_again(redis_url: str) -> None:
    """Redis frees the slots that nobody has freed in time."""
    store = open_store(redis_url, LIMITS)
    name = f"expiring{time.monotonic_ns()}"
    began_s = time.time()
    assert await takes(store, "a", slot(name, 1))
    with redis.Redis.from_url(redis_url) as server:
        key = f"switchcraft:limit:{name}"
        assert 0 < server.pttl(key) <= SLOT_TTL_S * 1000
        expires_s = server.zscore(key, "a") / 1e6  # pyrefly: ignore[unsupported-operation]
        # Redis and this process have the same clock.
        assert began_s - 1 < expires_s - SLOT_TTL_S < time.time() + 1
        server.zadd(key, {"a": began_s * 1e6})  # as if its process had been killed
    assert await takes(store, "b", slot(name, 1))
    await store.aclose()


async def test_operations_fail_without_the_store() -> None:
    """Each operation raises StoreError if Redis is away."""
    store = open_store("redis://127.0.0.1:1/0", LIMITS)
    with pytest.raises(StoreError):
        await store.take("a", [slot("s", 1)])
    with pytest.raises(StoreError):
        await store.settle([Correction("s", None, "a")])
    await store.aclose()
