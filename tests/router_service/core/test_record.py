"""A record becomes the decision record that the API and the store have."""

from __future__ import annotations

import json

from router_service.core.decision_record import (
    CandidateRecord,
    DecisionRecord,
    StopReason,
    VerificationStop,
)
from router_service.core.record import AnswerResult
from tests.records import make_record

STOP = VerificationStop(reason=StopReason.SURE)
ACCEPTED = AnswerResult(
    "small", 0.5, arm="small", step=1, p_correct=0.9, prompt_tokens=10, completion_tokens=2, calls=1
)


def test_decision_has_the_facts_of_its_record() -> None:
    """Only answers of arms are candidates, and fields with their default are not stored."""
    record = make_record(
        key="anna",
        stream=True,
        probabilities={"small": 0.75},
        expected_cost_usd={"small": 0.001},
        stop=STOP,
        answers=(ACCEPTED, AnswerResult("large", 2.0, is_accepted=False)),
    )
    assert record.decision() == DecisionRecord(
        id="dec_1",
        created=1.0,
        model="small",
        key="anna",
        reason="pinned",
        stream=True,
        status=200,
        ending="complete",
        latency_s=1.0,
        probabilities={"small": 0.75},
        expected_cost_usd={"small": 0.001},
        stop=STOP,
        candidates=(
            CandidateRecord(
                arm="small",
                model="small",
                step=1,
                is_accepted=True,
                p_correct=0.9,
                prompt_tokens=10,
                completion_tokens=2,
                seconds=0.5,
                calls=1,
            ),
        ),
    )
    stored = json.loads(record.stored_json())
    assert None not in stored.values()
    assert stored["stop"] == {"reason": "sure"}
