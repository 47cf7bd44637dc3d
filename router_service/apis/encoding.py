"""The only place that writes JSON of translated requests and answers.

What JSON cannot express is refused here, with one error for all writers: more levels than orjson
writes, lone surrogates, and NaN.
"""

from __future__ import annotations

import orjson

from router_service.apis.conversation import Json
from router_service.core.errors import SwitchcraftError


class UnwritableError(SwitchcraftError):
    """A value that strict JSON cannot express."""

    def __init__(self, cause: TypeError) -> None:
        """Create the message from orjson's error."""
        self.problem = f"cannot be written as JSON: {cause}"
        super().__init__(f"The value {self.problem}.")


def encode(value: Json) -> bytes:
    """Return a value as JSON; raises UnwritableError."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError as exc:
        raise UnwritableError(exc) from exc


def fits_inside(value: Json) -> bool:
    """Return whether a value can be written as a part of a request or an answer.

    orjson writes 254 levels. No schema and no call is more than 8 levels below the top of a body.
    """
    try:
        orjson.dumps([[[[[[[[value]]]]]]]])
    except orjson.JSONEncodeError:
        return False
    return True


def fix_surrogates(text: str) -> str:
    r"""Return a text that can be encoded: surrogate pairs are joined, and lone halves become `?`.

    Providers split an emoji between two deltas: `"\ud83d"` and `"\ude00"` are one character of the
    answer. A lone half cannot be encoded (Unicode standard, section 3.9).
    """
    if text.isascii() or not has_surrogates(text):
        return text
    return join_surrogates(text).encode(errors="replace").decode()


def join_surrogates(text: str) -> str:
    """Return a text with surrogate pairs joined to the characters that they stand for."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def has_surrogates(text: str) -> bool:
    """Return whether a text has halves of surrogate pairs, so that it cannot be encoded."""
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
