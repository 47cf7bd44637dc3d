"""The thread that works behind requests: it never holds one up, and nothing ends it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from router_service.telemetry import background
from router_service.telemetry.background import BackgroundWorker
from tests.serving import WAIT_S, wait_for


def waited(go_on: threading.Event) -> None:
    """Hang as a disk may, until told to go on."""
    go_on.wait(WAIT_S)


@contextmanager
def working(handle: Callable[[int], None], max_items: int = 100) -> Iterator[BackgroundWorker[int]]:
    """Yield a thread's queue, which is worked off when the block ends."""
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


def test_items_are_handled_in_order_and_all_of_them_before_the_end() -> None:
    """Closing waits for what is queued."""
    seen: list[int] = []
    with working(seen.append) as made:
        assert all(made.put(number) for number in range(50))
    assert seen == list(range(50))


def test_a_failure_ends_nothing() -> None:
    """What fails is one item's: the next is handled, even after a panic of native code."""
    seen: list[int] = []

    def handle(number: int) -> None:
        if number < 2:
            raise (RuntimeError, BaseException)[number]
        seen.append(number)

    with working(handle) as made:
        assert all(made.put(number) for number in range(4))
    assert seen == [2, 3]


def test_a_full_queue_takes_nothing_more_and_does_not_wait() -> None:
    """While the thread hangs, as many as allowed wait, and the next is refused at once."""
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
    """Few large requests fill it too; one alone is always taken."""
    go_on = threading.Event()
    with working(lambda _: waited(go_on)) as made:
        assert made.put(0, size_bytes=background.MAX_QUEUED_BYTES * 2)
        assert not made.put(1, size_bytes=1)
        go_on.set()
        wait_for(lambda: made.put(2, size_bytes=1), "there is room again")


def test_a_gateway_that_ends_does_not_wait_for_ever() -> None:
    """Where a disk hangs, closing gives up in time and says so."""
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


def test_what_never_began_ends_at_once() -> None:
    """An app that was never served has no thread to end."""
    made = BackgroundWorker[int](
        lambda _: None,
        max_items=3,
        on_length=lambda _: None,
        when_idle=lambda: None,
        at_end=lambda: None,
    )
    assert made.close(WAIT_S)
