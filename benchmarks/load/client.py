"""Load client with a fixed number of connections; each sends its next request after an answer.

It records what a gateway's user would see: latencies, times to the first byte, the age of each
streamed event on arrival, how long each connection waits for its first answer, and how often it is
answered.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import perf_counter, perf_counter_ns
from typing import cast

import httptools
import uvloop

from benchmarks.load.upstream import WRITTEN_AT

PATH = "/v1/chat/completions"
TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Load:
    """Requests for one port, with the number of connections and the duration."""

    port: int
    requests: Iterator[bytes]
    """Complete HTTP requests."""
    connections: int
    seconds: float
    warm_s: float = 0.0
    warm_requests: int = 0
    """Measurement starts after both `warm_s` and `warm_requests`, and after the first answer of
    every connection."""


@dataclass(slots=True)
class Record:
    """Measurements of a load, without its warm-up unless stated."""

    latencies_s: list[float] = field(default_factory=list)
    first_bytes_s: list[float] = field(default_factory=list)
    """From sending a request to the first byte of the answer's body."""
    ages_s: list[float] = field(default_factory=list)
    """From writing an event to its arrival."""
    first_answers_s: list[float] = field(default_factory=list)
    """Latency of each connection's first request. All are sent at once, at the load's start."""
    answers_by_connection: list[int] = field(default_factory=list)
    """Answers of each connection during the whole load, with the warm-up."""
    began: float = 0.0
    ended: float = 0.0
    cpu_s: float = 0.0

    @property
    def rate_per_s(self) -> float:
        """Answers per second."""
        return len(self.latencies_s) / (self.ended - self.began)


class RefusedError(Exception):
    """An answer had an error status or a connection was lost, so the load has no result."""


class _Run:
    """A running load: it warms up, measures, and then waits for the last answers."""

    def __init__(self, load: Load, cpu_s: Callable[[], float]) -> None:
        self.record = Record()
        self.done = asyncio.get_running_loop().create_future()
        self._load = load
        self._cpu_s = cpu_s
        self._requests_sent = 0
        self._open = load.connections
        self._warm_until = perf_counter() + load.warm_s

    @property
    def counts(self) -> bool:
        return self.record.began > 0.0 and not self.record.ended

    def next_request(self) -> bytes | None:
        """Return the next request for a connection; None when the time is over."""
        now = perf_counter()
        if not self.record.began and self._is_warm(now):
            self.record.cpu_s = -self._cpu_s()
            self.record.began = now
        if self.counts and now >= self.record.began + self._load.seconds:
            self.record.ended = now
            self.record.cpu_s += self._cpu_s()
        if self.record.ended:
            self._close_one()
            return None
        self._requests_sent += 1
        return next(self._load.requests)

    def failed(self, problem: str) -> None:
        if not self.done.done():
            self.done.set_exception(RefusedError(problem))

    def _is_warm(self, now: float) -> bool:
        return (
            now >= self._warm_until
            and self._requests_sent >= self._load.warm_requests
            and len(self.record.first_answers_s) == self._load.connections
        )

    def _close_one(self) -> None:
        """Note a connection's last answer; unfinished requests would slow down the next load."""
        self._open -= 1
        if not self._open and not self.done.done():
            self.done.set_result(None)


class _Connection(asyncio.Protocol):
    """Connection that sends a request, reads its answer, and sends the next."""

    def __init__(self, run: _Run) -> None:
        self._run = run
        self._parser = httptools.HttpResponseParser(self)
        self._sent = 0.0
        self._first_byte = 0.0
        self._tail = b""
        self.answers = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the interface but not the class.
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._run.failed(f"a connection was lost: {exc!r}")

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def ask(self) -> None:
        request = self._run.next_request()
        if request is not None:
            self._first_byte = 0.0
            self._sent = perf_counter()
            self._transport.write(request)

    def on_body(self, body: bytes) -> None:
        if not self._first_byte:
            self._first_byte = perf_counter()
        if b"at=" in body:
            self._read_ages(body)
        if self._parser.get_status_code() != 200:
            self._run.failed(f"{self._parser.get_status_code()}: {body.decode(errors='replace')}")

    def on_message_complete(self) -> None:
        record, latency_s = self._run.record, perf_counter() - self._sent
        self.answers += 1
        if self.answers == 1:
            record.first_answers_s.append(latency_s)
        if self._run.counts:
            record.latencies_s.append(latency_s)
            record.first_bytes_s.append(self._first_byte - self._sent)
        self.ask()

    def _read_ages(self, body: bytes) -> None:
        """Note the age of each event; an event split between two reads counts at the second."""
        now_ns = perf_counter_ns()
        lines = self._tail + body
        end = lines.rfind(b"\n") + 1
        self._tail = lines[end:]
        if self._run.counts:
            ages = ((now_ns - int(at)) / 1e9 for at in WRITTEN_AT.findall(lines[:end]))
            self._run.record.ages_s.extend(ages)

    def close(self) -> None:
        self._transport.abort()


def play(load: Load, cpu_s: Callable[[], float] = lambda: 0.0) -> Record:
    """Run a load and return its measurements; `cpu_s` returns the server's processor time.

    Raises RefusedError if any answer has an error status, and TimeoutError if none comes in time.
    """
    gc.collect()
    gc.freeze()
    gc.disable()  # the client's own collections would delay the slowest answers
    try:
        return uvloop.run(_play(load, cpu_s))
    finally:
        gc.enable()


async def _play(load: Load, cpu_s: Callable[[], float]) -> Record:
    run = _Run(load, cpu_s)
    loop = asyncio.get_running_loop()
    opened = [
        await loop.create_connection(lambda: _Connection(run), "127.0.0.1", load.port)
        for _ in range(load.connections)
    ]
    connections = [connection for _, connection in opened]
    for connection in connections:
        connection.ask()
    async with asyncio.timeout(load.warm_s + load.seconds + TIMEOUT_S):
        await run.done
    for connection in connections:
        connection.close()
    run.record.answers_by_connection = [connection.answers for connection in connections]
    return run.record
