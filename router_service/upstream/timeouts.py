"""Timeouts for the parts of an upstream's answer, and the waits that upstreams ask for."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import TracebackType

from router_service.core.errors import DeadlineError, Failure, OverlongError, UpstreamError
from router_service.settings import Timeouts

FIRST_WAITS = 2
"""The headers and the first part of the body arrive together or one after the other."""

STILL_ANSWERING_S = 5.0
"""An answer whose last part is not older than this was still arriving when its time was over."""

MAX_RETRY_AFTER_S = 24 * 3600.0
"""Longest wait that is adopted from an upstream. Providers name a day for daily quotas."""

MAX_DATE_BYTES = 64
"""An HTTP date has 29 characters, and some more in older formats."""

_NUMBER = re.compile(rb"[0-9]{1,64}(?:\.[0-9]{1,64})?")


class TimeoutGuard:
    """Timeouts of one answer, for the task that created the guard.

    Use it as a context manager around each wait: `with guard: await read()`. The first byte, each
    later part and the whole answer have timeouts of their own, and the client's deadline precedes
    them all. One timer serves all waits and is moved only if it is set too late, because a timer
    for each wait took as long as reading an event.
    """

    def __init__(self, model: str, timeouts: Timeouts, deadline_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        now_s = self._loop.time()
        self._model = model
        self._idle_s = timeouts.idle_s
        self._last_s = min(now_s + timeouts.total_s, deadline_s)
        self._deadline_s = deadline_s
        self._next_s = now_s + timeouts.first_byte_s
        self._waits = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - requests are always sent by a task
        self._task = task
        self._is_waiting = False
        self._has_expired = False
        self._cancellations = 0

    def close(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def __enter__(self) -> None:
        """Start a wait for the next part."""
        self._waits += 1
        now_s = self._loop.time()
        if self._waits > FIRST_WAITS:
            self._next_s = now_s + self._idle_s
        end_s = min(self._next_s, self._last_s)
        if self._timer is None:  # no later than the end of any later wait
            self._set_timer(min(end_s, now_s + self._idle_s))
        elif end_s < self._timer_s:
            self._set_timer(end_s)
        self._is_waiting = True
        self._cancellations = self._task.cancelling()

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, _: TracebackType | None
    ) -> None:
        """Raise UpstreamError or one of its subclasses if the wait timed out."""
        self._is_waiting = False
        if not self._has_expired or not isinstance(exc, asyncio.CancelledError):
            return
        # As in asyncio.Timeout, a cancellation by others takes precedence.
        if self._task.uncancel() > self._cancellations:
            return
        now_s = self._loop.time()
        if now_s >= self._deadline_s:
            raise DeadlineError(self._model) from exc
        silent_s = now_s - (self._next_s - self._idle_s)
        if self._waits > FIRST_WAITS and now_s >= self._last_s and silent_s < STILL_ANSWERING_S:
            raise OverlongError(self._model) from exc
        raise UpstreamError(self._model, "did not answer in time", Failure.TIMEOUT) from exc

    def _set_timer(self, end_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_s = self._loop.call_at(end_s, self._expire), end_s

    def _expire(self) -> None:
        self._timer = None
        end_s = min(self._next_s, self._last_s)
        if not self._is_waiting:
            return
        if self._loop.time() < end_s:
            self._set_timer(end_s)
        else:
            self._has_expired = True
            self._task.cancel()


def read_retry_after(headers: Mapping[bytes, bytes]) -> float | None:
    """Return the wait that `retry-after-ms` or `retry-after` asks for, in seconds from now.

    It is at most `MAX_RETRY_AFTER_S`. Return None if neither header is present or readable (RFC
    9110, section 10.2.3; `retry-after-ms` is OpenAI's).
    """
    milliseconds = _read_number(headers.get(b"retry-after-ms", b""))
    if milliseconds is not None:
        return min(milliseconds / 1000, MAX_RETRY_AFTER_S)
    text = headers.get(b"retry-after", b"")
    seconds = _read_number(text)
    if seconds is None and 0 < len(text) <= MAX_DATE_BYTES:
        try:
            date = parsedate_to_datetime(text.decode("latin-1"))
            date = date if date.tzinfo is not None else date.replace(tzinfo=UTC)
            seconds = max(0.0, (date - datetime.now(UTC)).total_seconds())
        except (ValueError, OverflowError):  # not a date, or one beyond the years 1 to 9999
            return None
    return None if seconds is None else min(seconds, MAX_RETRY_AFTER_S)


def _read_number(text: bytes) -> float | None:
    """Return a number without a sign or an exponent. `float` also accepts `nan` and `1_0`."""
    return float(text) if _NUMBER.fullmatch(text.strip()) else None
