"""One schema for decisions: each surface keeps its field names, and readers accept both."""

from __future__ import annotations

import json

from router_service.core.decision_record import DecisionRecord, LoggedDecision, read_line

RECORD = DecisionRecord(
    id="dec_1",
    created=1.5,
    model="small",
    arm="small",
    release="stable",
    reason="threshold",
    policy="theta=0.5",
    propensity=1.0,
    probabilities={"small": 0.75, "large": 0.9},
    expected_cost_usd={"small": 0.001, "large": 0.01},
    packed_tokens=7,
    stream=False,
    status=200,
    ending="complete",
    actual_cost_usd=0.002,
    latency_s=0.1,
)


def logged() -> LoggedDecision:
    """Return the log's line for the record."""
    return LoggedDecision(
        **dict(RECORD),
        conversation="0" * 32,
        request_sha256="1" * 64,
        artifact="a",
        artifact_sha256="2" * 64,
    )


def test_lines_of_earlier_versions_are_read() -> None:
    """A line with unknown fields, and without the fields of later versions, is a decision."""
    value = json.loads(logged().model_dump_json(by_alias=True, exclude_none=True))
    del value["stream"], value["features"], value["attempts"]
    line = read_line.validate_python({**value, "unknown": 1})
    assert isinstance(line, LoggedDecision)
    assert (line.stream, line.features, line.attempts) == (False, (), 0)
    assert line.actual_cost_usd == 0.002
