"""Every kind of store, as two replicas of a gateway see it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

import pytest
import redis

from router_service.store.opening import open_store
from router_service.store.redis import COOL_DOWNS_KEY, REJECTIONS_KEY
from router_service.store.store import Store, StoreLimits
from tests.stores import LIMITS

Replicas = Callable[..., AbstractAsyncContextManager[tuple[Store, Store]]]
"""Gives the stores of two replicas, optionally with other limits."""


@pytest.fixture
def server(redis_url: str) -> Iterator[redis.Redis]:
    """Yield a client of a Redis server without shared state, and leave none behind."""
    with redis.Redis.from_url(redis_url) as client:
        client.delete(COOL_DOWNS_KEY, REJECTIONS_KEY)
        yield client
        client.delete(COOL_DOWNS_KEY, REJECTIONS_KEY)


@pytest.fixture(params=["memory", "redis"])
def replicas(request: pytest.FixtureRequest) -> Replicas:
    """Return a function that opens the stores of two replicas, for each kind of store."""
    url = None
    if request.param == "redis":
        request.getfixturevalue("server")
        url = request.getfixturevalue("redis_url")

    @asynccontextmanager
    async def opened(limits: StoreLimits = LIMITS) -> AsyncIterator[tuple[Store, Store]]:
        async with AsyncExitStack() as stack:
            one = open_store(url, limits)
            other = open_store(url, limits) if one.is_shared else one
            stack.push_async_callback(one.aclose)
            stack.push_async_callback(other.aclose)
            yield one, other

    return opened
