"""Every kind of store, as two replicas of a gateway see it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack

import pytest
import redis

from router_service.store.opening import open_store
from router_service.store.parent_process import serve_workers
from router_service.store.redis import COOL_DOWNS_KEY, REJECTIONS_KEY
from router_service.store.store import Store, StoreLimits
from tests.stores import LIMITS

Check = Callable[[Store, Store], Awaitable[None]]
Run = Callable[..., None]
"""Runs a check with the stores of two replicas, and optionally with other limits."""


@pytest.fixture
def server(redis_url: str) -> Iterator[redis.Redis]:
    """Yield a client of a Redis server without shared state, and leave none behind."""
    with redis.Redis.from_url(redis_url) as client:
        client.delete(COOL_DOWNS_KEY, REJECTIONS_KEY)
        yield client
        client.delete(COOL_DOWNS_KEY, REJECTIONS_KEY)


@pytest.fixture(params=["memory", "workers", "redis"])
def replicas(request: pytest.FixtureRequest) -> Run:
    """Return a function that runs a check with two replicas of each kind of store."""
    url = "memory:"
    if request.param == "redis":
        request.getfixturevalue("server")
        url = request.getfixturevalue("redis_url")

    def run(check: Check, limits: StoreLimits = LIMITS) -> None:
        async def running() -> None:
            async with AsyncExitStack() as stack:
                place = url
                if request.param == "workers":
                    place = f"workers:{await stack.enter_async_context(serve_workers(limits))}"
                one = open_store(place, limits)
                other = open_store(place, limits) if one.is_shared else one
                stack.push_async_callback(one.aclose)
                stack.push_async_callback(other.aclose)
                await check(one, other)

        asyncio.run(running())

    return run
