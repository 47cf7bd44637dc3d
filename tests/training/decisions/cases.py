"""Decision logs for tests, written with the gateway's own models."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from router_service.core.decision_record import (
    Content,
    LoggedCall,
    LoggedDecision,
    LoggedEvidence,
    LoggedFeedback,
)
from tests.training.runs import STRING, function_tool

BOOK = function_tool("book", {"city": STRING})
Line = LoggedDecision | LoggedFeedback | LoggedEvidence


def call(city: str) -> LoggedCall:
    """Return a call of the only tool."""
    return LoggedCall(name="book", arguments={"city": city})


def content(text: str, calls: tuple[LoggedCall, ...] | None = (), said: str | None = "") -> Content:
    """Return a request with one tool, and its answer; None if the answer was not received."""
    request = {"messages": [{"role": "user", "content": text}], "tools": [BOOK]}
    return Content(request=request, calls=calls, text=said)


def decision(name: str, arm: str = "large", **facts: Any) -> LoggedDecision:  # noqa: ANN401
    """Return a complete decision for a pool of two arms, with these values changed."""
    known: dict[str, Any] = {
        "created": 1.0,
        "id": name,
        "conversation": name,
        "request_sha256": "0" * 64,
        "artifact": "made-up",
        "artifact_sha256": "1" * 64,
        "release": "stable",
        "policy": "theta=0.5",
        "arm": arm,
        "reason": "threshold",
        "propensity": 1.0,
        "probabilities": {"large": 0.9, "small": 0.6},
        "expected_cost_usd": {"large": 0.01, "small": 0.001},
        "packed_tokens": 20,
        "model": arm,
        "status": 200,
        "ending": "complete",
        "prompt_tokens": 90,
        "completion_tokens": 20,
        "cost_usd": 0.01 if arm == "large" else 0.001,
        "latency_s": 2.0,
    }
    return LoggedDecision(**(known | facts))


def right(name: str, created: float = 2.0) -> LoggedFeedback:
    """Return feedback that a decision's answer was correct."""
    return LoggedFeedback(created=created, decision_id=name, correct=True)


def wrong(name: str, created: float = 2.0) -> LoggedFeedback:
    """Return feedback that a decision's answer was wrong."""
    return LoggedFeedback(created=created, decision_id=name, correct=False)


def expects(name: str, *calls: LoggedCall) -> LoggedFeedback:
    """Return feedback with the calls that would have been correct."""
    return LoggedFeedback(created=2.0, decision_id=name, expected=calls)


def negative_evidence(name: str) -> LoggedEvidence:
    """Return weak evidence against a decision's call."""
    return LoggedEvidence(
        created=2.0, decision_id=name, arm="large", kind="tool_error", tool="book"
    )


def write_log(folder: Path, lines: Iterable[Line], name: str = "decisions-1.jsonl") -> Path:
    """Write lines to one file of a log's folder; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(line.model_dump_json(by_alias=True) + "\n" for line in lines)
    (folder / name).write_text(text)
    return folder
