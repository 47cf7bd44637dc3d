"""Sinks take records in batches, and at once if somebody reads what they have."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator

import pytest

from router_service.core.decision_record import DecisionRecord
from router_service.core.record import RecordKind
from router_service.requests.call import Call
from router_service.requests.recording import BATCH_RECORDS, Recorder
from router_service.settings import DatabaseSettings, UsageSettings
from router_service.store.memory import MemoryStore
from router_service.store.records import GuardedStore
from router_service.telemetry.logs import BatchHandler, JsonFormatter
from router_service.telemetry.metrics import Metrics
from router_service.telemetry.recent_requests import RecentRequests
from router_service.telemetry.usage import UsageHistory


class Writes(io.StringIO):
    """A stream that keeps what each call has written."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def write(self, text: str) -> int:
        """Keep the text."""
        self.texts.append(text)
        return len(text)


@pytest.fixture
def writes() -> Iterator[Writes]:
    """Yield what the log of requests is written to."""
    stream, logger = Writes(), logging.getLogger("switchcraft.request")
    handler, level = BatchHandler(stream), logger.level
    handler.setFormatter(JsonFormatter())
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield stream
    logger.removeHandler(handler)
    logger.setLevel(level)


def ended(metrics: Metrics) -> float:
    """Return how many refused requests the metrics have."""
    labels = {"model": "none", "policy": "none", "status": "400"}
    return metrics.registry.get_sample_value("switchcraft_requests_total", labels) or 0


def recorder(metrics: Metrics) -> Recorder:
    """Return a recorder without a database."""
    kept = MemoryStore(DecisionRecord, ttl_s=1, max_records=1, clock=lambda: 0.0)
    usage = UsageHistory(UsageSettings(), DatabaseSettings())
    listed = RecentRequests(UsageSettings(), DatabaseSettings())
    return Recorder(metrics, GuardedStore(kept, lambda _: None), usage, listed)


def end(made: Recorder, number: int) -> None:
    """Record a request that was refused."""
    made.ended(Call(f"dec_{number}", f"req_{number}", 0.0, path="/v1/models"), 400)


def test_sinks_take_full_batches_at_the_next_turn_of_the_loop(writes: Writes) -> None:
    """No batch is larger than a full one, and each is one write to the log, in order."""
    metrics = Metrics()

    async def check() -> None:
        made = recorder(metrics)
        for number in range(2 * BATCH_RECORDS + 1):
            end(made, number)
        assert ended(metrics) == 0
        for turns in (1, 2):
            await asyncio.sleep(0)
            assert ended(metrics) == turns * BATCH_RECORDS
        await asyncio.sleep(0)

    asyncio.run(check())
    lines = [text.splitlines() for text in writes.texts]
    assert [len(each) for each in lines] == [BATCH_RECORDS, BATCH_RECORDS, 1]
    ids = [json.loads(line)["id"] for batch in lines for line in batch]
    assert ids == [f"dec_{number}" for number in range(2 * BATCH_RECORDS + 1)]


def test_sinks_take_all_records_before_somebody_reads(writes: Writes) -> None:
    """A record waits for a batch, unless what it changes is read. It is taken once."""
    metrics = Metrics()

    async def check() -> None:
        made = recorder(metrics)
        end(made, 1)
        assert (ended(metrics), writes.texts) == (0, [])
        made.flush()
        assert (ended(metrics), len(writes.texts)) == (1, 1)
        made.flush()
        assert (ended(metrics), len(writes.texts)) == (1, 1)

    asyncio.run(check())


def test_request_is_recorded_once() -> None:
    """The gateway's outermost layer records only what nothing else has recorded."""
    metrics = Metrics()

    async def check() -> None:
        made, call = recorder(metrics), Call("dec_1", "dec_1", 0.0, path="/v1/models")
        made.ended(call, 400)
        made.ended(call, 400, RecordKind.OWN, method="GET")
        made.flush()

    asyncio.run(check())
    assert ended(metrics) == 1
