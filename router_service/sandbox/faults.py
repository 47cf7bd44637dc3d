"""What a request asks the sandbox to do wrong, in its `x-sandbox` header."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from router_service.core.errors import InvalidRequestError

HEADER = "x-sandbox"
"""The request header that asks for faults; as a response header it marks a sandbox answer."""

MAX_DELAY_S = 3600.0
_ENDINGS = ("status", "hang", "cut_after", "malformed")


@dataclass(frozen=True, slots=True)
class Faults:
    """The faults of one answer; without any, the sandbox answers at once and in full.

    At most one of `status`, `hang`, `cut_after` and `malformed` is set.
    """

    delay_s: float = 0.0
    """Wait before the first byte, and before an error status."""
    chunk_delay_s: float = 0.0
    """Wait between two events of a stream."""
    status: int | None = None
    """Answer with an error of this status, 400 to 599; 429 says `Retry-After: 1`."""
    hang: bool = False
    """Never answer."""
    cut_after: int | None = None
    """Break the connection after so many events, or in the middle of a body that is no stream."""
    malformed: bool = False
    """Answer with a body that is not JSON, or a stream with a broken line."""
    no_usage: bool = False
    """Say nothing about tokens, written `usage=none`."""

    @classmethod
    def parse(cls, header: str) -> Faults:
        """Read `field=value` and bare `field` entries, separated by commas.

        Raises InvalidRequestError that names the field that is unknown, repeated, unreadable, or
        in conflict with another one.
        """
        values: dict[str, Any] = {}
        for entry in filter(None, (part.strip() for part in header.split(","))):
            name, separator, text = (word.strip() for word in entry.partition("="))
            field = _FIELDS.get(name)
            if field is None:
                raise _invalid(name, f"is unknown; known are {', '.join(_FIELDS)}")
            if field in values:
                raise _invalid(name, "is given twice")
            values[field] = _READERS[name](name, text if separator else None)
        _check_endings(values)
        return cls(**values)


def _check_endings(values: Mapping[str, object]) -> None:
    given = [name for name in _ENDINGS if name in values]
    if len(given) > 1:
        raise _invalid(given[1], f"cannot be combined with '{given[0]}'")


def _seconds(name: str, text: str | None) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not 0 <= value <= MAX_DELAY_S:
        raise _invalid(name, f"needs seconds between 0 and {MAX_DELAY_S:.0f}, as in {name}=0.2")
    return value


def _status(name: str, text: str | None) -> int:
    value = _count(name, text)
    if not 400 <= value <= 599:
        raise _invalid(name, "needs an error status between 400 and 599")
    return value


def _count(name: str, text: str | None) -> int:
    if text is None or not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise _invalid(name, f"needs a whole number, as in {name}=503")
    return int(text)


def _switch(name: str, text: str | None) -> bool:
    if text is not None:
        raise _invalid(name, "takes no value")
    return True


def _none(name: str, text: str | None) -> bool:
    if text != "none":
        raise _invalid(name, f"takes one value, {name}=none")
    return True


def _invalid(name: str, problem: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"The field '{name[:80]}' of the request header {HEADER} {problem}.",
        param=HEADER,
        code="invalid_fault",
    )


_READERS: Mapping[str, Callable[[str, str | None], object]] = {
    "delay_s": _seconds,
    "chunk_delay_s": _seconds,
    "status": _status,
    "hang": _switch,
    "cut_after": _count,
    "malformed": _switch,
    "usage": _none,
}
_FIELDS: Mapping[str, str] = {name: name for name in _READERS} | {"usage": "no_usage"}
