"""Decisions take turns, wait for a bounded time, and do not wait for disconnected clients."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from router_service.core.errors import OverloadedError
from router_service.requests.limits import LARGE_BYTES, DecisionQueue
from tests.serving import WAIT_S, wait_for_async

pytestmark = pytest.mark.anyio


class Work:
    """Functions that run in threads until a test ends them; `started` has their names."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.used_s = 0.0
        """Processor time, for tests that do not measure it."""
        self._may_end: dict[str, threading.Event] = {}

    def named(self, name: str) -> Callable[[], str]:
        """Return a function that records its name, waits, and returns the name."""
        event = self._may_end.setdefault(name, threading.Event())

        def work() -> str:
            self.started.append(name)
            event.wait(WAIT_S)
            return name

        return work

    def end(self, *names: str) -> None:
        """Let these functions return, including those that start later."""
        for name in names:
            self._may_end.setdefault(name, threading.Event()).set()

    async def has_started(self, count: int) -> None:
        """Return once this many functions have started."""
        await until(lambda: len(self.started) >= count)


async def until(condition: Callable[[], bool]) -> None:
    """Return once a condition holds; fail if it does not in time."""

    async def holds() -> bool:
        return condition()

    await wait_for_async(holds, "the condition holds")


async def test_callers_share_processor_time() -> None:
    """A caller with long decisions gets as much time as one with short ones, not as many turns."""
    work = Work()
    queue = DecisionQueue(1, 100, WAIT_S, lambda: work.used_s)
    names = [*(f"long{i}" for i in range(4)), *(f"short{i}" for i in range(6))]

    def decide(name: str) -> str:
        work.used_s += 3.0 if name.startswith("long") else 1.0
        return name

    running = asyncio.create_task(queue.run("long", 0, work.named("first")))
    await work.has_started(1)
    ended: list[str] = []

    async def run(name: str) -> None:
        ended.append(await queue.run(name[:-1], 0, decide, name))

    tasks = [asyncio.create_task(run(name)) for name in names]
    await until(lambda: queue.waiting == len(names))
    work.end("first")
    await asyncio.gather(running, *tasks)
    assert ended[0] == "long0"  # both have used as much so far
    assert ended[1:5] == ["short0", "short1", "short2", "long1"]
    assert ended[5:9] == ["short3", "short4", "short5", "long2"]
    queue.close()


async def test_large_bodies_do_not_occupy_all_threads() -> None:
    """They are read one after the other, while small ones have their own threads."""
    queue, work = DecisionQueue(1, 10, WAIT_S), Work()
    sizes = {"large0": LARGE_BYTES + 1, "large1": LARGE_BYTES + 1, "small": LARGE_BYTES}
    tasks = [asyncio.create_task(queue.run("a", sizes[n], work.named(n))) for n in sizes]
    await work.has_started(2)
    assert work.started == ["large0", "small"]
    work.end(*sizes)
    assert await asyncio.gather(*tasks) == list(sizes)
    queue.close()


async def test_full_queue_has_room_for_callers_with_few_decisions() -> None:
    """The caller with most decisions loses its latest; one that would exceed it is refused."""
    queue, work = DecisionQueue(1, 4, WAIT_S), Work()
    running = asyncio.create_task(queue.run("a", 0, work.named("running")))
    await work.has_started(1)
    flood = [asyncio.create_task(queue.run("a", 0, work.named("flood"))) for _ in range(4)]
    await until(lambda: queue.waiting == 4)
    with pytest.raises(OverloadedError):
        await queue.run("a", 0, work.named("flood"))
    others = [asyncio.create_task(queue.run("b", 0, work.named("other"))) for _ in range(2)]
    await until(lambda: sum(task.done() for task in flood) == 2)
    assert [task.done() for task in flood] == [False, False, True, True]
    assert all(isinstance(task.exception(), OverloadedError) for task in flood[2:])
    with pytest.raises(OverloadedError):
        await queue.run("b", 0, work.named("other"))
    work.end("running", "flood", "other")
    assert await asyncio.gather(running, *flood[:2], *others)
    queue.close()


async def test_waiting_time_is_limited() -> None:
    """A decision that does not start in time is refused, and leaves the queue."""
    queue, work = DecisionQueue(1, 4, 0.05), Work()
    running = asyncio.create_task(queue.run(None, 0, work.named("running")))
    await work.has_started(1)
    with pytest.raises(OverloadedError) as caught:
        await queue.run(None, 0, work.named("late"))
    assert caught.value.reason == "decisions_queued"
    assert queue.waiting == 0
    work.end("running")
    assert await running == "running"
    queue.close()
