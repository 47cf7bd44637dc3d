"""Gauges of a gateway's present state."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from router_service.artifact import Artifact
from router_service.core.errors import UpstreamError
from router_service.core.resources import Cache
from router_service.predictor.model import Execution
from router_service.requests.limits import DecisionQueue, Slots
from router_service.runtime.engine import Engine
from router_service.runtime.gauges import Gauges
from router_service.settings import BreakerSettings, Settings
from router_service.telemetry.metrics import Metrics
from router_service.upstream.breaker import CircuitBreakers
from tests.fakes import FakeRouter, manifest


class Looking(FakeRouter):
    """Router with a cache that the test can use."""

    def __init__(self, cache: Cache[str, str]) -> None:
        super().__init__()
        self._cache = cache

    @property
    def caches(self) -> Mapping[str, Cache[str, str]]:
        """Return the cache."""
        return {"signatures": self._cache}


class Shown:
    """Parts of a gateway whose gauges are registered, and the samples of a scrape."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.breakers = CircuitBreakers(BreakerSettings(), time.monotonic, lambda *_: None)
        self.slots = Slots(10)
        self.gauges = Gauges(self.metrics, self.breakers, self.slots, DecisionQueue(1, 10, 1.0))

    def engine(self, router: FakeRouter, *arms: str) -> Engine:
        """Return an engine of a router and models of its arms."""
        settings = Settings.sandbox("http://127.0.0.1:9/v1", arms)
        return Engine(settings, router, self.breakers)

    def value(self, series: str, /, **labels: str) -> float | None:
        """Return a sample, or None if the series does not exist."""
        return self.metrics.registry.get_sample_value(f"switchcraft_{series}", labels)


@pytest.fixture
def shown() -> Shown:
    """Return a gateway's parts."""
    return Shown()


def test_series_exist_before_they_count(shown: Shown) -> None:
    """The first failure is an increase from 0, which a rate can show."""
    shown.gauges.show_engine(shown.engine(FakeRouter(), "small", "medium"))
    assert shown.value("reloads_total", kind="config", outcome="refused") == 0
    assert shown.value("last_reload_successful", kind="artifact") == 1
    assert shown.value("decisions_total", arm="small", reason="argmax") == 0
    assert shown.value("upstream_seconds_count", model="medium") == 0
    assert shown.value("upstream_seconds_count", model="large") is None


def test_gauges_show_the_current_engine(shown: Shown) -> None:
    """Artifact and graph are 1 and the previous ones 0; a removed deployment no longer counts."""
    before = shown.engine(FakeRouter(), "small", "medium")
    shown.gauges.show_engine(before)
    other = FakeRouter()
    renamed = manifest().model_copy(update={"name": "other"})
    other.artifact = Artifact(Path(), renamed, other.artifact.tokenizer)
    other.execution = Execution("model.fp16.onnx", "CUDAExecutionProvider")
    after = shown.engine(other, "small")
    (gone,) = before.deployment_ids - after.deployment_ids
    shown.breakers.record_failure(
        gone, UpstreamError("gone", "is full", retry_after_s=60), address="http://gone/v1"
    )
    shown.gauges.refresh(before)
    assert shown.value("breaker_open", deployment=gone) == 1
    assert shown.value("deployments_available") == 1
    shown.gauges.show_engine(after)
    labels = {"encoder": "none", "commit": "0000000"}
    old = {"name": "fake", "graph": "model.onnx", "provider": "CPUExecutionProvider"}
    assert shown.value("artifact_info", **old, **labels) == 0
    new = {"name": "other", "graph": "model.fp16.onnx", "provider": "CUDAExecutionProvider"}
    assert shown.value("artifact_info", **new, **labels) == 1
    assert shown.value("breaker_open", deployment=gone) == 0
    assert shown.value("deployments_available") == 1


def test_gauges_show_requests_in_flight(shown: Shown) -> None:
    """Slots in use are shown at the moment of the scrape."""
    engine = shown.engine(FakeRouter(), "small")
    with shown.slots.slot(None):
        shown.gauges.refresh(engine)
        assert shown.value("requests_in_flight") == 1
    shown.gauges.refresh(engine)
    assert shown.value("requests_in_flight") == 0


def test_cache_lookups_are_counted_once(shown: Shown) -> None:
    """Each refresh adds the lookups since the last one, even if routers share a cache."""
    cache: Cache[str, str] = Cache(max_bytes=1000)
    cache.put("known", "value", size_bytes=1)
    engine = shown.engine(Looking(cache), "small")
    look_up(cache, hits=3, misses=2)
    shown.gauges.refresh(engine)
    look_up(cache, hits=4, misses=0)
    shown.gauges.refresh(engine)
    shown.gauges.refresh(shown.engine(Looking(cache), "small"))
    own: Cache[str, str] = Cache(max_bytes=1000)
    look_up(own, hits=0, misses=1)
    shown.gauges.refresh(shown.engine(Looking(own), "small"))
    counted = {
        outcome: shown.value("cache_lookups_total", cache="signatures", outcome=outcome)
        for outcome in ("hit", "miss")
    }
    assert counted == {"hit": 7, "miss": 3}


def look_up(cache: Cache[str, str], *, hits: int, misses: int) -> None:
    """Look up an entry that exists, and one that does not."""
    for _ in range(hits):
        cache.get("known")
    for _ in range(misses):
        cache.get("unknown")
