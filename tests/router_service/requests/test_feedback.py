"""Background work never delays requests: if the queue is full, items are dropped and counted."""

from __future__ import annotations

from pathlib import Path

from router_service.core.decision_record import LoggedFeedback
from router_service.requests.feedback import BackgroundLog, WeakEvidence
from router_service.settings import (
    DatabaseSettings,
    DecisionLogSettings,
    ServerSettings,
    UsageSettings,
)
from router_service.store.memory import MemoryStore
from router_service.telemetry.metrics import Metrics
from router_service.telemetry.usage import UsageHistory


def test_full_queue_drops_and_counts(tmp_path: Path) -> None:
    """What does not fit into the queue of a log that writes nothing is a lost line."""
    metrics, settings = Metrics(), DecisionLogSettings(path=tmp_path, max_queued=2)
    store = MemoryStore(ServerSettings().store_limits)
    evidence = WeakEvidence(store, lambda _: None, keeps_names=False)
    usage = UsageHistory(UsageSettings(), DatabaseSettings())
    log = BackgroundLog(settings, metrics, usage, evidence)
    for _ in range(5):  # it is not started
        log.write(LoggedFeedback(created=1, decision_id="dec_1", correct=True))
    labels = {"kind": "decision_log", "reason": "full"}
    assert metrics.registry.get_sample_value("switchcraft_lost_records_total", labels) == 3
