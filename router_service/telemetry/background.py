"""Background worker: one thread that handles requests after they have ended."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar

MAX_QUEUED_BYTES = 64 * 1024 * 1024
"""The queue is bounded by size too, because a request may have 10 MB."""
IDLE_S = 30.0
"""Longest time between two calls of `when_idle` if the queue is empty."""

T = TypeVar("T")
_log = logging.getLogger("switchcraft.background")


class BackgroundWorker(Generic[T]):
    """Bounded queue, and a thread that handles its items in order."""

    def __init__(
        self,
        handle: Callable[[T], None],
        *,
        max_items: int,
        on_length: Callable[[int], None],
        when_idle: Callable[[], None],
        at_end: Callable[[], None],
    ) -> None:
        """Create; nothing is handled before `start`.

        `on_length` receives the queue's length whenever it changes. `when_idle` is called in the
        thread every `IDLE_S` seconds, and `at_end` before the thread ends.
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
        self._thread = threading.Thread(target=self._run, name="background", daemon=True)
        self._ends_at_s = float("inf")

    def start(self) -> None:
        """Start the thread, which handles earlier items first."""
        self._thread.start()

    def put(self, item: T, size_bytes: int = 0) -> bool:
        """Queue an item without waiting; return False if the queue is full."""
        with self._lock:
            if self._items >= self._max_items or self._bytes >= MAX_QUEUED_BYTES:
                return False
            self._items += 1
            self._bytes += size_bytes
            self._on_length(self._items)
        self._queue.put((item, size_bytes))
        return True

    def close(self, timeout_s: float) -> bool:
        """Handle the queued items and end the thread; return False if the time was too short."""
        if not self._thread.is_alive():
            return self._items == 0
        self._ends_at_s = time.monotonic() + timeout_s
        self._queue.put(None)
        self._thread.join(timeout_s)
        return self._items == 0

    def _run(self) -> None:
        idle_called_s = time.monotonic()
        while time.monotonic() < self._ends_at_s:
            with suppress(queue.Empty):
                queued = self._queue.get(timeout=IDLE_S)
                if queued is None:
                    break
                item, size_bytes = queued
                self._call(partial(self._handle, item))
                del queued, item  # frees the memory during the next wait
                with self._lock:
                    self._items -= 1
                    self._bytes -= size_bytes
                    self._on_length(self._items)
            if time.monotonic() >= idle_called_s + IDLE_S:
                idle_called_s = time.monotonic()
                self._call(self._when_idle)
        self._call(self._at_end)

    def _call(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException:  # noqa: BLE001 - a panic in native code is not an Exception, and must not end the thread
            _log.exception("background work after a request failed")
