"""Headers of answers about rate limits, as OpenAI's clients read them."""

from __future__ import annotations

from collections.abc import Sequence
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
    unit = rate.unit
    return (
        (b"x-ratelimit-limit-" + unit, b"%d" % rate.limit),
        (b"x-ratelimit-remaining-" + unit, b"%d" % rate.remaining),
        (b"x-ratelimit-reset-" + unit, write_duration(rate.reset_s)),
    )


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
