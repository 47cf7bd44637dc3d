"""The series as a page that people read: `deploy/METRICS.md`."""

from __future__ import annotations

from collections.abc import Iterator

from router_service.telemetry.metrics import Metrics, Series

_HEAD = """\
# Metrics

What `GET /metrics` shows, with the metrics key or the admin key. Written by `switchcraft metrics`.
Label values come from the configuration and the artifact, never from a client. A histogram has
`_bucket` (with the label `le`), `_sum` and `_count`. Several workers of one gateway are shown as
one: what they count is added up; of gauges the type says whether it is their sum, the least or the
greatest.

| series | type | labels | meaning |
|---|---|---|---|"""


def list_series() -> Iterator[str]:
    """Yield the lines of the page."""
    yield _HEAD
    for series in Metrics().series:
        yield f"| {' | '.join(_cells(series))} |"


def _cells(series: Series) -> Iterator[str]:
    yield f"`{series.name}`"
    yield series.kind if series.together is None else f"{series.kind} ({series.together})"
    yield ", ".join(f"`{label}`" for label in series.labels)
    yield series.text
