"""The background worker: it never blocks a request, and no failure ends it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from router_service.telemetry import background
from router_service.telemetry.background import BackgroundWorker
from tests.serving import WAIT_S, wait_for


def waited(go_on: threading.Event) -> None:
    """Block until told to continue, as a disk may."""
    go_on.wait(WAIT_S)


@contextmanager
def working(handle: Callable[[int], None], max_items: int = 100) -> Iterator[BackgroundWorker[int]]:
    """Yield a worker, whose items are all handled when the block ends."""
    made = BackgroundWorker[int](
        handle,
        max_items=max_items,
        on_length=lambda _: None,
        when_idle=lambda: None,
        at_end=lambda: None,
    )
    made.start()
    yield made
    assert made.close(WAIT_S)


def test_close_handles_all_items_in_order() -> None:
    """Closing waits for the queued items."""
    seen: list[int] = []
    with working(seen.append) as made:
        assert all(made.put(number) for number in range(50))
    assert seen == list(range(50))


def test_failed_item_does_not_end_the_worker() -> None:
    """The next item is handled, even after a panic in native code."""
    seen: list[int] = []

    def handle(number: int) -> None:
        if number < 2:
            raise (RuntimeError, BaseException)[number]
        seen.append(number)

    with working(handle) as made:
        assert all(made.put(number) for number in range(4))
    assert seen == [2, 3]


def test_full_queue_refuses_without_waiting() -> None:
    """While the thread hangs, items wait up to the limit, and the next is refused at once."""
    go_on = threading.Event()
    lengths: list[int] = []
    made = BackgroundWorker[int](
        lambda _: waited(go_on),
        max_items=3,
        on_length=lengths.append,
        when_idle=lambda: None,
        at_end=lambda: None,
    )
    made.start()
    assert [made.put(number) for number in range(5)] == [True, True, True, False, False]
    assert max(lengths) == 3
    go_on.set()
    wait_for(lambda: lengths[-1] == 0, "the queue is worked off")
    assert made.put(5)
    assert made.close(WAIT_S)


def test_the_queue_is_bounded_in_bytes() -> None:
    """Few large requests fill the queue too; a single one is always accepted."""
    go_on = threading.Event()
    with working(lambda _: waited(go_on)) as made:
        assert made.put(0, size_bytes=background.MAX_QUEUED_BYTES * 2)
        assert not made.put(1, size_bytes=1)
        go_on.set()
        wait_for(lambda: made.put(2, size_bytes=1), "there is room again")


def test_close_gives_up_after_its_timeout() -> None:
    """If a disk hangs, closing returns False in time."""
    go_on = threading.Event()
    made = BackgroundWorker[int](
        lambda _: waited(go_on),
        max_items=3,
        on_length=lambda _: None,
        when_idle=lambda: None,
        at_end=lambda: None,
    )
    made.start()
    made.put(1)
    started_s = time.monotonic()
    assert not made.close(0.1)
    assert time.monotonic() - started_s < WAIT_S
    go_on.set()


def test_close_without_start_returns_at_once() -> None:
    """An app that was never served has no thread to end."""
    made = BackgroundWorker[int](
        lambda _: None,
        max_items=3,
        on_length=lambda _: None,
        when_idle=lambda: None,
        at_end=lambda: None,
    )
    assert made.close(WAIT_S)
