"""How long an upstream is waited for, and when it wants to be asked again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import anyio

from router_service.core.errors import DeadlineError, Failure, UpstreamError
from router_service.settings import Timeouts

FIRST_WAITS = 2
"""The headers and the first part of the body come together or one after the other."""


class Patience:
    """How long the next part of an answer is waited for.

    The first byte has its own time, each later part another, and all of it together a third; the
    client's deadline is before them all.
    """

    def __init__(self, model: str, timeouts: Timeouts, deadline_s: float) -> None:
        now_s = anyio.current_time()
        self._model = model
        self._idle_s = timeouts.idle_s
        self._end_s = now_s + timeouts.total_s
        self._deadline_s = deadline_s
        self._next_s = now_s + timeouts.first_byte_s
        self._waits = 0

    @contextmanager
    def next_wait(self) -> Iterator[None]:
        """Bound what is awaited in the block; raises UpstreamError, or DeadlineError."""
        self._waits += 1
        if self._waits > FIRST_WAITS:
            self._next_s = anyio.current_time() + self._idle_s
        try:
            with anyio.fail_at(min(self._next_s, self._end_s, self._deadline_s)):
                yield
        except TimeoutError as exc:
            if anyio.current_time() >= self._deadline_s:
                raise DeadlineError(self._model) from exc
            raise UpstreamError(self._model, "did not answer in time", Failure.TIMEOUT) from exc


def read_retry_after(headers: Mapping[str, str]) -> float | None:
    """Return what `retry-after-ms` or `retry-after` says, in seconds; a date is one from now.

    RFC 9110, section 10.2.3; the first is OpenAI's.
    """
    milliseconds, text = headers.get("retry-after-ms"), headers.get("retry-after")
    try:
        if milliseconds is not None:
            return max(0.0, float(milliseconds) / 1000)
        if text is None:
            return None
        return max(0.0, float(text))
    except ValueError:
        return _seconds_until(text or "")


def _seconds_until(date: str) -> float | None:
    try:
        moment = parsedate_to_datetime(date)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())
