"""Every backend, as two replicas of a gateway see it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
import redis

from router_service.settings import ServerSettings
from router_service.store.backends import (
    Backend,
    LimitStore,
    R,
    RecordStore,
    SharedState,
    StoreLimits,
)
from router_service.store.opening import open_backend
from router_service.store.parent_process import serve_workers
from router_service.store.redis import COOL_DOWNS_KEY, POINTER_KEY, REJECTIONS_KEY

LIMITS = ServerSettings().store_limits


class Replicas:
    """The views of two replicas on one backend. In memory, both are the same."""

    def __init__(self, backend: Backend, stack: AsyncExitStack) -> None:
        self.backend = backend
        self._stack = stack

    def records(self, kind: type[R]) -> tuple[RecordStore[R], RecordStore[R]]:
        """Return both replicas' stores for a kind of record."""
        one = self.backend.records(kind)
        other = self.backend.records(kind) if self.backend.is_shared else one
        self._close_at_end(one, other)
        return one, other

    def states(self) -> tuple[SharedState, SharedState]:
        """Return both replicas' views of the shared state."""
        one = self.backend.shared_state()
        other = self.backend.shared_state() if self.backend.is_shared else one
        self._close_at_end(one, other)
        return one, other

    def limit_stores(self) -> tuple[LimitStore, LimitStore]:
        """Return both replicas' views of the limits."""
        one = self.backend.limit_store()
        other = self.backend.limit_store() if self.backend.is_shared else one
        self._close_at_end(one, other)
        return one, other

    def _close_at_end(self, *opened: RecordStore[R] | SharedState | LimitStore) -> None:
        for each in opened:
            self._stack.push_async_callback(each.aclose)


Check = Callable[[Replicas], Awaitable[None]]
Run = Callable[..., None]
"""Runs a check with replicas, and optionally with other limits."""


@pytest.fixture
def server(redis_url: str) -> redis.Redis:
    """Return a client of a Redis server without shared state."""
    client = redis.Redis.from_url(redis_url)
    client.delete(COOL_DOWNS_KEY, REJECTIONS_KEY, POINTER_KEY)
    return client


@pytest.fixture(params=["memory", "workers", "redis"])
def replicas(request: pytest.FixtureRequest) -> Run:
    """Return a function that runs a check with two replicas of each backend."""
    url = "memory:"
    if request.param == "redis":
        request.getfixturevalue("server").close()
        url = request.getfixturevalue("redis_url")

    def run(check: Check, limits: StoreLimits = LIMITS) -> None:
        async def running() -> None:
            async with AsyncExitStack() as stack:
                place = url
                if request.param == "workers":
                    place = f"workers:{await stack.enter_async_context(serve_workers(limits))}"
                await check(Replicas(open_backend(place, limits), stack))

        asyncio.run(running())

    return run
