"""How long upstreams ask to wait before a retry."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from router_service.upstream.timeouts import MAX_RETRY_AFTER_S, read_retry_after


@pytest.mark.parametrize(
    ("name", "value", "expected_s"),
    [
        (b"retry-after", b"7", 7.0),
        (b"retry-after", b" 0.25 ", 0.25),
        (b"retry-after", b"Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        (b"retry-after", b"99999999999", MAX_RETRY_AFTER_S),
        (b"retry-after", b"Fri, 31 Dec 9999 23:59:59 -2359", MAX_RETRY_AFTER_S),
        (b"retry-after-ms", b"1500", 1.5),
        (b"retry-after-ms", b"9" * 64, MAX_RETRY_AFTER_S),
    ],
)
def test_seconds_and_dates_are_read(name: bytes, value: bytes, expected_s: float) -> None:
    """Seconds, milliseconds and dates are read as waits from now of at most a day."""
    assert read_retry_after({name: value}) == expected_s


def test_a_date_is_counted_from_now() -> None:
    """A date a minute ahead is a wait of about a minute."""
    moment = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    wait_s = read_retry_after({b"retry-after": moment.encode()})
    assert wait_s is not None
    assert 30 < wait_s <= 60


def test_milliseconds_are_preferred_if_they_can_be_read() -> None:
    """OpenAI sends both headers. The exact one counts, unless it cannot be read."""
    assert read_retry_after({b"retry-after": b"2", b"retry-after-ms": b"1500"}) == 1.5
    assert read_retry_after({b"retry-after": b"2", b"retry-after-ms": b"nan"}) == 2


UNREADABLE = [
    b"",
    b"Mon, 01 Jan 999999999999 00:00:00 GMT",
    b"Mon, 01 Jan 2026 00:00:00 +99999999999999999999",
    b"Mon, 99 Jan 2026 99:99:99 GMT",
    b"nan",
    b"inf",
    b"-inf",
    b"1e400",
    b"-1",
    b"1_000",
    b"0x10",
    b"\xb2",
    b"\xd9\xa1",
    b"9" * 5000,
    b"soon",
]


@pytest.mark.parametrize("value", UNREADABLE)
@pytest.mark.parametrize("name", [b"retry-after", b"retry-after-ms"])
def test_unreadable_waits_are_ignored(name: bytes, value: bytes) -> None:
    """An unreadable value counts as no wait."""
    assert read_retry_after({name: value}) is None


@settings(deadline=None)
@given(st.binary(max_size=80))
@example(b"Mon, 01 Jan 0001 00:00:00 +2359")
def test_no_value_raises(value: bytes) -> None:
    """Every header value is read as a wait within the limit, or as none."""
    for name in (b"retry-after", b"retry-after-ms"):
        wait_s = read_retry_after({name: value})
        assert wait_s is None or 0 <= wait_s <= MAX_RETRY_AFTER_S
