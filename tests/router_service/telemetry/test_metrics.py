"""The list of series, and labels with few values."""

from __future__ import annotations

from http import HTTPStatus

from prometheus_client.parser import text_string_to_metric_families

from router_service.telemetry.metrics import Metrics, status_label


def test_every_exposed_series_is_listed() -> None:
    """Type, name and help text of a scrape match the list of series."""
    metrics = Metrics()
    shown = {
        (f"{family.name}_total" if family.type == "counter" else family.name): family
        for family in text_string_to_metric_families(metrics.exposition().decode())
    }
    listed = {series.name: series for series in metrics.series}
    assert shown.keys() == listed.keys()
    for name, series in listed.items():
        assert (shown[name].type, shown[name].documentation) == (series.kind, series.text)


def test_status_labels_are_few() -> None:
    """Known statuses have their own label; invented ones share one label per class."""
    assert [status_label(status) for status in (200, 429, 499, 529)] == ["200", "429", "499", "529"]
    assert [status_label(status) for status in (299, 420, 599)] == ["2xx", "4xx", "5xx"]
    assert status_label(HTTPStatus.OK) == "200"
    assert len({status_label(status) for status in range(100, 1000)}) < 80
