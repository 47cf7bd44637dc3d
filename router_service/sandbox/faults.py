"""Faults of the sandbox: requested by a request's `x-sandbox` header, or set for a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from router_service.core.errors import InvalidRequestError
from router_service.core.messages import Json

HEADER = "x-sandbox"
"""Request header that asks for faults; as a response header it marks a sandbox answer."""

MAX_DELAY_S = 3600.0
_EXCLUSIVE = (
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
    """The faults of one answer; without any, the sandbox answers immediately and completely.

    At most one of `status`, `hang`, `cut_after`, `malformed`, `error_in_body`, `error_after` and
    `hang_after` is set.
    """

    delay_s: float = 0.0
    """Wait before the first byte, and before an error status."""
    chunk_delay_s: float = 0.0
    """Wait between two events of a stream."""
    status: int | None = None
    """Answer with an error of this status, 400 to 599; 429 has `Retry-After: 1`."""
    retry_after_s: float | None = None
    """With `status`: send `Retry-After` (seconds, rounded up) and `retry-after-ms` (exact)."""
    hang: bool = False
    """Never answer."""
    cut_after: int | None = None
    """Break the connection after this many events, or in the middle of a body."""
    malformed: bool = False
    """Answer with a body that is not JSON, or with a stream that has a broken line."""
    error_in_body: bool = False
    """Answer with status 200 and a JSON body that is an error, also to streamed requests."""
    error_after: int | None = None
    """End a stream with an error event after this many events; without a stream, the same as
    `error_in_body`."""
    hang_after: int | None = None
    """Stop forever after this many events, or in the middle of a body."""
    keep_alives: bool = False
    """Send a comment, `: keep-alive`, before each event; comments do not count as events."""
    multi_line: bool = False
    """Send the data of every second event on several lines, and every third event with CRLF."""
    reject_stream_options: bool = False
    """Answer with status 400 if the body has `stream_options`, as some providers do."""
    no_usage: bool = False
    """Omit the usage, written `usage=none`."""
    times: int | None = None
    """Only for the faults of a model: number of requests that get these faults."""

    @classmethod
    def parse(cls, header: str) -> Faults:
        """Parse `field=value` and `field` entries, separated by commas.

        Raise InvalidRequestError with the field that is unknown, repeated, unreadable, or in
        conflict with another one.
        """
        values: dict[str, Any] = {}
        for entry in filter(None, (part.strip() for part in header.split(","))):
            name, separator, text = (word.strip() for word in entry.partition("="))
            if name not in _READERS:
                raise _invalid(name, f"is unknown; known fields are {', '.join(_READERS)}")
            field = "no_usage" if name == "usage" else name
            if field in values:
                raise _invalid(name, "is given twice")
            values[field] = _READERS[name](name, text if separator else None)
        exclusive = [name for name in _EXCLUSIVE if name in values]
        if len(exclusive) > 1:
            raise _invalid(exclusive[1], f"cannot be combined with '{exclusive[0]}'")
        if "retry_after_s" in values and "status" not in values:
            raise _invalid("retry_after_s", "needs a status, as in status=429,retry_after_s=2")
        return cls(**values)

    @classmethod
    def parse_header(cls, header: str) -> Faults:
        """Parse a request's own header, in which `times` is not allowed."""
        faults = cls.parse(header)
        if faults.times is not None:
            raise _invalid("times", "is for faults of a model, see PUT /sandbox/faults/{model}")
        return faults

    def check_request(self, body: Mapping[str, Json]) -> None:
        """Raise InvalidRequestError if these faults reject the body."""
        if self.reject_stream_options and "stream_options" in body:
            raise InvalidRequestError(
                "Unrecognized request argument supplied: stream_options",
                param="stream_options",
                code="unknown_parameter",
            )


class ModelFaults:
    """Faults by model, for requests that do not ask for any themselves."""

    def __init__(self) -> None:
        self._by_model: dict[str, Faults] = {}

    def put(self, model: str, text: str) -> None:
        """Set a model's faults, or clear them if the text is empty; raise InvalidRequestError."""
        if text.strip():
            self._by_model[model] = Faults.parse(text)
        else:
            self._by_model.pop(model, None)

    def take(self, model: str) -> Faults:
        """Return the faults for a request for a model, and count the request."""
        faults = self._by_model.get(model, FAULTLESS)
        if faults.times is None:
            return faults
        if faults.times > 1:
            self._by_model[model] = replace(faults, times=faults.times - 1)
        else:
            self._by_model.pop(model)
        return faults if faults.times else FAULTLESS

    def to_json(self) -> dict[str, dict[str, Json]]:
        """Return the faults by model; `times` is the number of remaining requests."""
        return {
            model: {name: value for name, value in asdict(faults).items() if value}
            for model, faults in self._by_model.items()
        }


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


def _switch(name: str, text: str | None, *, value: str | None = None) -> bool:
    if text != value:
        raise _invalid(name, f"takes one value, {name}={value}" if value else "takes no value")
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
    "usage": partial(_switch, value="none"),
    "times": _count,
}

FAULTLESS = Faults()
