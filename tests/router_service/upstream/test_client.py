"""The waits that upstreams ask for."""

from __future__ import annotations

import pytest

from router_service.upstream.client import (
    MAX_RETRY_AFTER_S,
    read_retry_after,
)
from tests.attacks import WAITS


@pytest.mark.parametrize(
    ("headers", "expected_s"),
    [
        ({b"retry-after": b" 0.25 "}, 0.25),
        ({b"retry-after": b"Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({b"retry-after": b"99999999999"}, MAX_RETRY_AFTER_S),
        ({b"retry-after": b"Fri, 31 Dec 9999 23:59:59 -2359"}, MAX_RETRY_AFTER_S),
        ({b"retry-after-ms": b"9" * 64}, MAX_RETRY_AFTER_S),
        ({b"retry-after": b"2", b"retry-after-ms": b"1500"}, 1.5),
        ({b"retry-after": b"2", b"retry-after-ms": b"nan"}, 2),
    ],
)
def test_seconds_and_dates_are_read(headers: dict[bytes, bytes], expected_s: float) -> None:
    """Seconds, milliseconds and dates are read as waits from now of at most a day.

    OpenAI sends both headers. The exact one counts, unless it cannot be read.
    """
    assert read_retry_after(headers) == expected_s


@pytest.mark.parametrize("value", WAITS)
@pytest.mark.parametrize("name", [b"retry-after", b"retry-after-ms"])
def test_unreadable_waits_are_ignored(name: bytes, value: bytes) -> None:
    """An unreadable value counts as no wait."""
    assert read_retry_after({name: value}) is None
