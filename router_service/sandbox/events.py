"""Server-sent events as providers write them: plain, and in the odd forms that the standard allows.

Source: WHATWG HTML, "Server-sent events".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import orjson

from router_service.core.messages import Json

KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"
_DATA = b"data: "


def event(value: Mapping[str, Json], name: str | None = None) -> bytes:
    """Return an event with JSON as its data, and with a name where the API gives it one."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + _DATA + orjson.dumps(value) + b"\n\n"


def with_keep_alives(events: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a comment before each event."""
    for each in events:
        yield KEEP_ALIVE
        yield each


def in_odd_forms(events: Iterable[bytes]) -> Iterator[bytes]:
    """Yield every second event with its data over several lines, every third with CRLF."""
    for index, each in enumerate(events, start=1):
        spread = _over_lines(each) if index % 2 == 0 else each
        yield spread.replace(b"\n", b"\r\n") if index % 3 == 0 else spread


def _over_lines(text: bytes) -> bytes:
    """Break JSON data where white space may stand; other data (`[DONE]`) stays as it is."""
    head, mark, data = text.partition(_DATA)
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return text
    lines = orjson.dumps(value, option=orjson.OPT_INDENT_2).split(b"\n")
    return head + b"\n".join(mark + line for line in lines) + b"\n\n"
