"""Shared state is the same in every backend."""

from __future__ import annotations

import pytest
import redis

from router_service.core.errors import StoreError
from router_service.store.redis import COOL_DOWNS_KEY, REJECTIONS_KEY, RedisStore
from tests.router_service.store.conftest import Replicas
from tests.stores import LIMITS

pytestmark = pytest.mark.anyio


async def test_cool_downs_are_shared(replicas: Replicas) -> None:
    """The other replica sees a cool-down with its remaining time. The longer one counts."""
    async with replicas() as (one, other):
        await one.cool_down("a", 60)
        await one.cool_down("b", 30)
        await other.cool_down("a", 5)
        seen = await other.cool_downs(["a", "b", "c"])
        assert 50 < seen["a"].left_s <= 60
        assert 20 < seen["b"].left_s <= 30
        again = await one.cool_downs(["a", "c"])
        assert again.keys() == {"a"}, "only what is asked for is read"
        assert again["a"].end_s == seen["a"].end_s


async def test_rejections_are_shared(replicas: Replicas) -> None:
    """The other replica sees a rejection, with the reason."""
    async with replicas() as (one, other):
        await one.reject("release", "3 points more errors: é")
        assert await other.is_rejected("release")
        assert not await other.is_rejected("another")


async def test_values_of_unknown_versions_do_no_harm(redis_url: str, server: redis.Redis) -> None:
    """Names that are no text and times that no replica writes are ignored."""
    server.zadd(COOL_DOWNS_KEY, {b"\xff": 1e12})
    server.zadd(COOL_DOWNS_KEY, {"a": float("inf"), "b": float("-inf")})
    server.hset(REJECTIONS_KEY, "x", b"\xff")
    state = RedisStore(redis_url, LIMITS)
    assert await state.cool_downs(["a", "b", "\xff"]) == {}
    assert await state.is_rejected("x")
    await state.aclose()


async def test_errors_of_an_unreachable_redis_hide_the_password() -> None:
    """Every operation raises StoreError without the password."""
    state = RedisStore("redis://:planted-secret@127.0.0.1:9/0", LIMITS)
    for operation in (
        state.cool_downs([]), state.is_rejected("a"), state.cool_down("a", 1),
        state.reject("a", "b"),
    ):  # fmt: skip
        with pytest.raises(StoreError) as caught:
            await operation
        assert "planted" not in f"{caught.value!s}{caught.value.__cause__!r}"
    await state.aclose()
