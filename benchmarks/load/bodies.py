"""Requests of the load: a small one, and the leaderboard's, repeated or each sent once."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from benchmarks.load.client import PATH
from benchmarks.load.upstream import PACED
from router_service.core.messages import Json
from switchcraft_training.datasets.bfcl import PACKAGE, read_source

MODEL = "gpt-4o-mini"
"""Model of the requests that are not routed."""
ROUTED = "switchcraft"
_SEED = 7


def small() -> Mapping[str, Json]:
    """Return a request of about 100 bytes without tools."""
    return {"messages": [{"role": "user", "content": "Say hello to everyone in the room."}]}


def small_stream(*, paced: bool) -> Mapping[str, Json]:
    """Return a small request for a stream, whose events come at once or paced."""
    content = PACED.decode() if paced else "Say hello to everyone in the room."
    return {"messages": [{"role": "user", "content": content}], "stream": True}


@cache
def real() -> Sequence[Mapping[str, Any]]:
    """Return every distinct request of the leaderboard, of all categories, in a fixed order."""
    requests = (judged.example.request for judged in read_source(Path(PACKAGE)))
    distinct = {orjson.dumps(request): request for request in requests}
    return random.Random(_SEED).sample(list(distinct.values()), len(distinct))  # noqa: S311


def once(requests: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield each request, then all again with a number appended to the last user message."""
    yield from requests
    for number in itertools.count(2):
        yield from (_numbered(request, number) for request in requests)


def _numbered(request: Mapping[str, Any], number: int) -> Mapping[str, Any]:
    messages = list(request["messages"])
    last = max(i for i, message in enumerate(messages) if message["role"] == "user")
    messages[last] = {**messages[last], "content": f"{messages[last]['content']} ({number})"}
    return {**request, "messages": messages}


def framed(
    requests: Iterator[Mapping[str, Json]], model: str, headers: Mapping[str, str]
) -> Iterator[bytes]:
    """Yield HTTP requests as bytes, with a model and headers."""
    lines = {"host": "127.0.0.1", "content-type": "application/json", **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    start = f"POST {PATH} HTTP/1.1\r\n{head}content-length: ".encode()
    for request in requests:
        body = orjson.dumps({"model": model, **request})
        yield b"%b%d\r\n\r\n%b" % (start, len(body), body)


def again(requests: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the requests repeatedly, without end."""
    return itertools.cycle(list(requests))
