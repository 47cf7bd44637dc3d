"""A store that replicas share, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar

from router_service.core.errors import StoreError
from router_service.settings import ServerSettings
from router_service.store.memory import MemoryStore
from tests.clock import Clock

P = ParamSpec("P")
T = TypeVar("T")

LIMITS = ServerSettings().store_limits


def _reached(
    operation: Callable[Concatenate[RemoteStore, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[RemoteStore, P], Coroutine[Any, Any, T]]:
    """Return an operation of the store that waits until it answers, and fails while it is away."""

    async def reach(self: RemoteStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        self.asked += 1
        await self.answers.wait()
        if self.is_away:
            raise StoreError("answer", "it is away")
        return await operation(self, *args, **kwargs)

    return reach


class RemoteStore(MemoryStore):
    """A store that may be away (`is_away`), or not answer before `answers` is set."""

    is_shared: ClassVar[bool] = True

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        super().__init__(LIMITS, clock or Clock())
        self.is_away = False
        self.asked = 0
        self.answers = asyncio.Event()
        self.answers.set()

    put = _reached(MemoryStore.put)
    add = _reached(MemoryStore.add)
    get = _reached(MemoryStore.get)
    cool_downs = _reached(MemoryStore.cool_downs)
    cool_down = _reached(MemoryStore.cool_down)
    take = _reached(MemoryStore.take)
    settle = _reached(MemoryStore.settle)
