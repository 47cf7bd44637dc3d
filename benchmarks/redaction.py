"""Processor time of relaying a stream, with and without redaction of the deployment's key.

    python benchmarks/redaction.py --out runs/redaction.json

It measures events of a chat stream, read by `upstream/streams.py` from memory, one event per part,
and bodies of several sizes through `Redactor` alone. None of them contains the key. Contenders
take turns; medians over rounds (least to most).
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import orjson
from pydantic import SecretStr

from benchmarks.stamp import stamp
from router_service.settings import Timeouts
from router_service.upstream.client import TimeoutGuard, UpstreamAnswer
from router_service.upstream.connection import HttpResponse
from router_service.upstream.redaction import Redactor, Secrets, secrets_of
from router_service.upstream.streams import EventReader

KEY = SecretStr("sk-proj-" + "Kx81QzPwJw72RtVsUy63" * 7)
EVENT = (
    b'data: {"id":"chatcmpl-BxyZ012345","object":"chat.completion.chunk","created":1780000000,'
    b'"model":"gpt-4o-2024-08-06","service_tier":"default","system_fingerprint":"fp_07871e2ad8",'
    b'"choices":[{"index":0,"delta":{"content":" the"},"logprobs":null,"finish_reason":null}]}\n\n'
)
EVENTS = 1000
SIZES = (len(EVENT), 1024, 16 * 1024, 64 * 1024)


class Memory(HttpResponse):
    """Answer whose parts are in memory."""

    def __init__(self, parts: list[bytes]) -> None:
        self.status = 200
        self.headers = [(b"content-type", b"text/event-stream")]
        self._parts = iter(parts)

    async def read(self) -> bytes:
        """Return the next part."""
        return next(self._parts, b"")

    async def aclose(self) -> None:
        """Do nothing."""


def main() -> None:
    """Print a table, and write it as JSON if `--out` is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--out", type=Path, help="file for the figures as JSON")
    arguments = parser.parse_args()
    secrets = secrets_of("https://h/v1", KEY)
    assert secrets is not None  # noqa: S101 - the key is long enough
    contenders: dict[str, Callable[[], float]] = {
        "an event, without a key": lambda: asyncio.run(relayed_us(None)),
        "an event, with a key": lambda: asyncio.run(relayed_us(secrets)),
        **{f"a part of {size:,} bytes": partial(fed_us, secrets, size) for size in SIZES},
    }
    figures: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(arguments.rounds):
        for name, measure in contenders.items():
            figures[name].append(measure())
    for name, values in figures.items():
        spread = f"({min(values):.2f} to {max(values):.2f})"
        print(f"{name:<26} {statistics.median(values):8.2f} us {spread}")
    if arguments.out:
        report = {**stamp(), "us": figures}
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2))


async def relayed_us(secrets: Secrets | None) -> float:
    """Return the processor time of relaying one event of a stream."""
    parts = [EVENT] * EVENTS + [b"data: [DONE]\n\n"]
    guard = TimeoutGuard("m", Timeouts(), float("inf"))
    answer = UpstreamAnswer("m", Memory(parts), guard, secrets=secrets)
    began_s = time.process_time()
    async for _ in EventReader(answer).events:
        pass
    took_s = time.process_time() - began_s
    guard.close()
    return took_s / EVENTS * 1e6


def fed_us(secrets: Secrets, size: int) -> float:
    """Return the processor time of searching one part."""
    redaction, part = Redactor(secrets), (EVENT * (size // len(EVENT) + 1))[-size:]
    times = max(10, 2_000_000 // size)
    began_s = time.process_time()
    for _ in range(times):
        redaction.feed(part)
    return (time.process_time() - began_s) / times * 1e6


if __name__ == "__main__":
    main()
