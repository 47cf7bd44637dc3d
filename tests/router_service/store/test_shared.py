"""What replicas share: the same in memory and in Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import redis

from router_service.core.errors import ConfigError, StoreError
from router_service.core.publication import POINTER_KEY
from router_service.store.redis_shared import COOL_DOWNS_KEY, REJECTIONS_KEY, RedisSharedState
from router_service.store.shared import MemorySharedState, SharedState, Snapshot
from tests.serving import wait_for_async

Check = Callable[[SharedState, SharedState], Awaitable[None]]


@pytest.fixture
def server(redis_url: str) -> redis.Redis:
    """Return a client of a Redis without shared state."""
    client = redis.Redis.from_url(redis_url)
    client.delete(COOL_DOWNS_KEY, REJECTIONS_KEY, POINTER_KEY)
    return client


@pytest.fixture(params=["memory", "redis"])
def replicas(request: pytest.FixtureRequest) -> Callable[[Check], None]:
    """Return what runs a check with two replicas' views; in memory they are one."""

    async def run(check: Check) -> None:
        if request.param == "memory":
            state = MemorySharedState(asyncio.get_running_loop().time)
            await check(state, state)
            return
        request.getfixturevalue("server").close()
        one, other = (RedisSharedState(request.getfixturevalue("redis_url")) for _ in range(2))
        await check(one, other)
        await one.aclose()
        await other.aclose()

    return lambda check: asyncio.run(run(check))


def test_nothing_yet(replicas: Callable[[Check], None]) -> None:
    """At first there is no cool-down, no pointer and no rejection."""

    async def check(one: SharedState, _other: SharedState) -> None:
        assert await one.read() == Snapshot()

    replicas(check)


def test_cool_downs_are_shared(replicas: Callable[[Check], None]) -> None:
    """A rest is seen by the other replica with the time that is left; the longer one counts."""

    async def check(one: SharedState, other: SharedState) -> None:
        await one.cool_down("a", 60)
        await one.cool_down("b", 30)
        await other.cool_down("a", 5)
        seen = (await other.read()).cool_downs
        assert 50 < seen["a"] <= 60
        assert 20 < seen["b"] <= 30

    replicas(check)


def test_cool_downs_end(replicas: Callable[[Check], None]) -> None:
    """A rest that is over is not shown."""

    async def check(one: SharedState, other: SharedState) -> None:
        async def is_over() -> bool:
            return not (await other.read()).cool_downs

        await one.cool_down("a", 0.05)
        await wait_for_async(is_over, "the rest is over")

    replicas(check)


def test_rejections_are_shared(replicas: Callable[[Check], None]) -> None:
    """A release that one replica rejected is known to the other, with the reason."""

    async def check(one: SharedState, other: SharedState) -> None:
        await one.reject("release", "3 points more errors: é")
        assert (await other.read()).rejections == {"release": "3 points more errors: é"}

    replicas(check)


def test_the_pointer_is_read(redis_url: str, server: redis.Redis) -> None:
    """What a publisher wrote comes as it is, and what no version wrote does no harm."""
    server.set(POINTER_KEY, b"\xff not json")
    server.zadd(COOL_DOWNS_KEY, {b"\xff": 1e12})
    server.hset(REJECTIONS_KEY, "x", b"\xff")

    async def check() -> None:
        state = RedisSharedState(redis_url)
        snapshot = await state.read()
        assert snapshot.publication == b"\xff not json"
        assert len(snapshot.cool_downs) == len(snapshot.rejections) == 1
        await state.aclose()

    asyncio.run(check())


def test_keys_have_an_end(redis_url: str, server: redis.Redis) -> None:
    """What replicas write is gone some time after the last of them, and old members before."""

    async def check() -> None:
        state = RedisSharedState(redis_url)
        await state.cool_down("short", 0.001)
        await asyncio.sleep(0.01)
        await state.cool_down("long", 60)
        await state.reject("release", "why")
        await state.aclose()

    asyncio.run(check())
    assert server.ttl(COOL_DOWNS_KEY) > 0
    assert server.ttl(REJECTIONS_KEY) > 0
    assert server.zcard(COOL_DOWNS_KEY) == 1


def test_another_type_under_a_key_is_an_error(redis_url: str, server: redis.Redis) -> None:
    """A key that something else uses is StoreError, not a crash."""
    server.set(REJECTIONS_KEY, "text")

    async def check() -> None:
        state = RedisSharedState(redis_url)
        with pytest.raises(StoreError):
            await state.read()
        await state.aclose()

    asyncio.run(check())
    server.delete(REJECTIONS_KEY)


@pytest.mark.parametrize(
    "url", ["redis://u:planted/secret@127.0.0.1:6379", "http://:secret@h", "redis://:secret@h:x"]
)
def test_a_bad_address_is_not_quoted(url: str) -> None:
    """The error of an address that does not parse shows none of it, its cause included."""
    with pytest.raises(ConfigError) as caught:
        RedisSharedState(url)
    assert "secret" not in f"{caught.value!s}{caught.value!r}"
    assert caught.value.__suppress_context__


def test_away_is_an_error_without_the_password() -> None:
    """A Redis that is away is StoreError for every operation, and the error shows no password."""

    async def check() -> None:
        state = RedisSharedState("redis://:planted-secret@127.0.0.1:9/0")
        for operation in (
            state.read(), state.cool_down("a", 1), state.reject("a", "b"),
        ):  # fmt: skip
            with pytest.raises(StoreError) as caught:
                await operation
            assert "planted" not in f"{caught.value!s}{caught.value.__cause__!r}"
        await state.aclose()

    asyncio.run(check())
