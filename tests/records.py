"""Records of requests that have ended."""

from __future__ import annotations

from typing import Any

from router_service.core.record import Ending, Record, RecordKind

FACTS: dict[str, Any] = {
    "kind": RecordKind.PLANNED,
    "id": "dec_1",
    "request_id": "dec_1",
    "path": "/v1/chat/completions",
    "status": 200,
    "ending": Ending.COMPLETE,
    "created": 1.0,
    "latency_s": 1.0,
    "model": "small",
    "reason": "pinned",
}


def make_record(**changes: Any) -> Record:  # noqa: ANN401
    """Return the record of a request that its named model has answered, with these changes."""
    return Record(**(FACTS | changes))


def refused_record(**changes: Any) -> Record:  # noqa: ANN401
    """Return the record of a request that a rate limit has refused, with these changes."""
    refusal = {"kind": RecordKind.REFUSED, "model": None, "reason": None, "status": 429}
    return make_record(**(refusal | {"error": "rate_limit_exceeded"} | changes))
