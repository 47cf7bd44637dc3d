"""What is done about requests that have ended, in one thread that no request waits for."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

MAX_QUEUED_BYTES = 64 * 1024 * 1024
"""Requests may have 10 MB each: they are bounded by size too."""
IDLE_S = 30.0
"""Longest time between two calls of `when_idle`'s where nothing is to be done."""

T = TypeVar("T")
_log = logging.getLogger("switchcraft.afterwards")


class Afterwards(Generic[T]):
    """A bounded queue, and the thread that works it off in order."""

    def __init__(
        self,
        handle: Callable[[T], None],
        *,
        max_items: int,
        on_length: Callable[[int], None],
        when_idle: Callable[[], None],
        at_end: Callable[[], None],
    ) -> None:
        """Handle nothing before `start`; `on_length` gets the queue's length as it changes.

        `when_idle` is called now and then in the thread, and `at_end` as the last.
        """
        self._handle = handle
        self._max_items = max_items
        self._on_length = on_length
        self._when_idle = when_idle
        self._at_end = at_end
        self._queue: queue.SimpleQueue[tuple[T, int] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._items = 0
        self._bytes = 0
        self._thread = threading.Thread(target=self._run, name="afterwards", daemon=True)
        self._ends_at_s = float("inf")

    def start(self) -> None:
        """Begin; what was put before is handled first."""
        self._thread.start()

    def put(self, item: T, size_bytes: int = 0) -> bool:
        """Leave an item to the thread; False where there are too many already. Never waits."""
        with self._lock:
            if self._items >= self._max_items or self._bytes >= MAX_QUEUED_BYTES:
                return False
            self._items += 1
            self._bytes += size_bytes
            self._on_length(self._items)
        self._queue.put((item, size_bytes))
        return True

    def close(self, timeout_s: float) -> bool:
        """Handle what is queued, and end; False where the time was over before that."""
        if not self._thread.is_alive():
            return self._items == 0
        self._ends_at_s = time.monotonic() + timeout_s
        self._queue.put(None)
        self._thread.join(timeout_s)
        return self._items == 0

    def _run(self) -> None:
        self._work()
        self._guarded(self._at_end)

    def _work(self) -> None:
        tidied_s = time.monotonic()
        while time.monotonic() < self._ends_at_s:
            with suppress(queue.Empty):
                queued = self._queue.get(timeout=IDLE_S)
                if queued is None:
                    return
                self._do(*queued)
            if time.monotonic() >= tidied_s + IDLE_S:
                tidied_s = time.monotonic()
                self._guarded(self._when_idle)

    def _do(self, item: T, size_bytes: int) -> None:
        self._guarded(lambda: self._handle(item))
        with self._lock:
            self._items -= 1
            self._bytes -= size_bytes
            self._on_length(self._items)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException:  # noqa: BLE001 - a panic of native code is no Exception; the thread must go on
            _log.exception("what was to be done after a request failed")
