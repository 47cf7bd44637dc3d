"""Headers of answers about rate limits, as OpenAI's clients read them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

HEADER_PREFIXES = (b"x-ratelimit-", b"anthropic-ratelimit-")
"""Beginnings of all headers about rate limits, whichever API they belong to."""

RawHeader = tuple[bytes, bytes]


class RateState(NamedTuple):
    """A rate limit, and what is left of it."""

    unit: bytes
    """What is limited: `requests` or `tokens`."""
    limit: int
    """The most in a minute."""
    remaining: int
    """What may be used at once."""
    reset_s: float
    """Time until all of it may be used at once."""


def openai_headers(rate: RateState) -> Sequence[RawHeader]:
    """Return the headers about one rate (OpenAI: "Rate limits in headers")."""
    limit, remaining, reset = _names(rate.unit)
    return (
        (limit, b"%d" % rate.limit),
        (remaining, b"%d" % rate.remaining),
        (reset, write_duration(rate.reset_s)),
    )


@cache
def _names(unit: bytes) -> Sequence[bytes]:
    return [b"x-ratelimit-%b-%b" % (name, unit) for name in (b"limit", b"remaining", b"reset")]


def write_duration(seconds: float) -> bytes:
    """Return a duration as OpenAI writes it: `12ms`, `1.5s`, `6m0s` or `1h0m3s`."""
    milliseconds = max(0, round(seconds * 1000))
    if milliseconds < 60_000:
        is_short = 0 < milliseconds < 1000
        return b"%dms" % milliseconds if is_short else b"%gs" % (milliseconds / 1000)
    minutes, milliseconds = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    end = b"%dm%gs" % (minutes, milliseconds / 1000)
    return b"%dh" % hours + end if hours else end
