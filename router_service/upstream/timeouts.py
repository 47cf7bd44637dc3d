"""How long an upstream is waited for, and when it wants to be asked again."""

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
"""The headers and the first part of the body come together or one after the other."""

STILL_ANSWERING_S = 5.0
"""An answer whose last part is not older than this was still coming when its time was over."""

MAX_RETRY_AFTER_S = 24 * 3600.0
"""Longest wait that is adopted from an upstream. Providers name a day for daily quotas."""

MAX_DATE_BYTES = 64
"""An HTTP date has 29 characters, older forms have some more."""

_NUMBER = re.compile(rb"[0-9]{1,64}(?:\.[0-9]{1,64})?")


class TimeoutGuard:
    """How long the next part of an answer is waited for, by the task that made this.

    The first byte has its own time, each later part another, and all of it together a third; the
    client's deadline is before them all. One timer serves all waits, and is moved only where it
    ends too early: a timer a wait took as long as reading an event.
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
        assert task is not None  # noqa: S101 - whoever asks an upstream is a task
        self._task = task
        self._is_waiting = False
        self._has_expired = False
        self._cancellations = 0

    def close(self) -> None:
        """Let go of the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def __enter__(self) -> None:
        """Wait for the next part: what is awaited in the block is bounded."""
        self._waits += 1
        if self._waits > FIRST_WAITS:
            self._next_s = self._loop.time() + self._idle_s
        end_s = min(self._next_s, self._last_s)
        if self._timer is None:  # no later than any wait to come may end
            self._move_timer(min(end_s, self._loop.time() + self._idle_s))
        elif end_s < self._timer_s:
            self._move_timer(end_s)
        self._is_waiting = True
        self._cancellations = self._task.cancelling()

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, _: TracebackType | None
    ) -> None:
        """Raise UpstreamError, or DeadlineError, where the time was over."""
        self._is_waiting = False
        if not self._has_expired or not isinstance(exc, asyncio.CancelledError):
            return
        # As asyncio.Timeout has it: a cancellation from elsewhere goes before ours.
        if self._task.uncancel() > self._cancellations:
            return
        now_s = self._loop.time()
        if now_s >= self._deadline_s:
            raise DeadlineError(self._model) from exc
        silent_s = now_s - (self._next_s - self._idle_s)
        if self._waits > FIRST_WAITS and now_s >= self._last_s and silent_s < STILL_ANSWERING_S:
            raise OverlongError(self._model) from exc
        raise UpstreamError(self._model, "did not answer in time", Failure.TIMEOUT) from exc

    def _move_timer(self, end_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_s = self._loop.call_at(end_s, self._expire), end_s

    def _expire(self) -> None:
        self._timer = None
        end_s = min(self._next_s, self._last_s)
        if not self._is_waiting:
            return
        if self._loop.time() < end_s:
            self._move_timer(end_s)
        else:
            self._has_expired = True
            self._task.cancel()


def read_retry_after(headers: Mapping[bytes, bytes]) -> float | None:
    """Return the wait that `retry-after-ms` or `retry-after` asks for, in seconds from now.

    At most `MAX_RETRY_AFTER_S`. None if neither is there, or if what is there cannot be read (RFC
    9110, section 10.2.3; `retry-after-ms` is OpenAI's).
    """
    milliseconds = _number(headers.get(b"retry-after-ms", b""))
    text = headers.get(b"retry-after", b"")
    seconds = _number(text) if milliseconds is None else milliseconds / 1000
    if seconds is None:
        seconds = _seconds_until(text)
    return None if seconds is None else min(seconds, MAX_RETRY_AFTER_S)


def _number(text: bytes) -> float | None:
    """Return a number without a sign or an exponent: `float` would also read `nan` and `1_0`."""
    return float(text) if _NUMBER.fullmatch(text.strip()) else None


def _seconds_until(date: bytes) -> float | None:
    if not 0 < len(date) <= MAX_DATE_BYTES:
        return None
    try:
        moment = parsedate_to_datetime(date.decode("latin-1"))
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return max(0.0, (moment - datetime.now(UTC)).total_seconds())
    except (ValueError, OverflowError):  # not a date, or one beyond the years 1 to 9999
        return None
