"""What the sandbox is asked to do wrong: by a request's `x-sandbox` header, or for a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from router_service.core.errors import InvalidRequestError
from router_service.core.messages import Json

HEADER = "x-sandbox"
"""The request header that asks for faults; as a response header it marks a sandbox answer."""

MAX_DELAY_S = 3600.0
_ENDINGS = (
    "status",
    "hang",
    "cut_after",
    "malformed",
    "error_in_body",
    "error_after",
    "hang_after",
)


@dataclass(frozen=True, slots=True)
class Faults:
    """The faults of one answer; without any, the sandbox answers at once and in full.

    At most one of `status`, `hang`, `cut_after`, `malformed`, `error_in_body`, `error_after` and
    `hang_after` is set.
    """

    delay_s: float = 0.0
    """Wait before the first byte, and before an error status."""
    chunk_delay_s: float = 0.0
    """Wait between two events of a stream."""
    status: int | None = None
    """Answer with an error of this status, 400 to 599; 429 says `Retry-After: 1`."""
    retry_after_s: float | None = None
    """With `status`: say `Retry-After` (whole seconds, rounded up) and `retry-after-ms` (exact)."""
    hang: bool = False
    """Never answer."""
    cut_after: int | None = None
    """Break the connection after so many events, or in the middle of a body that is no stream."""
    malformed: bool = False
    """Answer with a body that is not JSON, or a stream with a broken line."""
    error_in_body: bool = False
    """Answer with status 200, and a JSON body that is an error; streams are answered so too."""
    error_after: int | None = None
    """End a stream properly, but by an error event after so many events; else `error_in_body`."""
    hang_after: int | None = None
    """Stop for ever after so many events, or in the middle of a body that is no stream."""
    keep_alives: bool = False
    """Write a comment, `: keep-alive`, before each event; a comment is no event that counts."""
    multi_line: bool = False
    """Write every second event's data over several lines, and end every third's lines by CRLF."""
    reject_stream_options: bool = False
    """Answer with 400 where the body has `stream_options`, as some providers do."""
    no_usage: bool = False
    """Say nothing about tokens, written `usage=none`."""
    times: int | None = None
    """For a model alone: only the next so many requests meet these faults."""

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
        if "retry_after_s" in values and "status" not in values:
            raise _invalid("retry_after_s", "needs a status, as in status=429,retry_after_s=2")
        return cls(**values)

    @classmethod
    def parse_header(cls, header: str) -> Faults:
        """Read a request's own header, as `parse` does; `times` is of a model's faults alone."""
        faults = cls.parse(header)
        if faults.times is not None:
            raise _invalid("times", "is for faults of a model, see PUT /sandbox/faults/{model}")
        return faults


class ModelFaults:
    """The faults that requests for a model meet, unless their own header asks for some."""

    def __init__(self) -> None:
        self._by_model: dict[str, Faults] = {}

    def put(self, model: str, text: str) -> None:
        """Set a model's faults, or clear them by an empty text; raises InvalidRequestError."""
        if text.strip():
            self._by_model[model] = Faults.parse(text)
        else:
            self._by_model.pop(model, None)

    def take(self, model: str) -> Faults:
        """Return the faults of a request for a model, which count as met by it."""
        faults = self._by_model.get(model, FAULTLESS)
        if faults.times is None:
            return faults
        if faults.times > 1:
            self._by_model[model] = replace(faults, times=faults.times - 1)
        else:
            self._by_model.pop(model)
        return faults if faults.times else FAULTLESS

    def to_json(self) -> dict[str, dict[str, Json]]:
        """Return what is set, by model; `times` is how many requests are still to meet it."""
        return {
            model: {name: value for name, value in asdict(faults).items() if value}
            for model, faults in self._by_model.items()
        }


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
    "retry_after_s": _seconds,
    "error_in_body": _switch,
    "error_after": _count,
    "hang_after": _count,
    "keep_alives": _switch,
    "multi_line": _switch,
    "reject_stream_options": _switch,
    "usage": _none,
    "times": _count,
}
_FIELDS: Mapping[str, str] = {name: name for name in _READERS} | {"usage": "no_usage"}

FAULTLESS = Faults()
