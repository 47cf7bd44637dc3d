"""The list of series, and labels with few values."""

from __future__ import annotations

from http import HTTPStatus

from router_service.telemetry.metrics import status_label


def test_status_labels_are_few() -> None:
    """Known statuses have their own label; invented ones share one label per class."""
    assert [status_label(status) for status in (200, 429, 499, 529)] == ["200", "429", "499", "529"]
    assert [status_label(status) for status in (299, 420, 599)] == ["2xx", "4xx", "5xx"]
    assert status_label(HTTPStatus.OK) == "200"
    assert len({status_label(status) for status in range(100, 1000)}) < 80
