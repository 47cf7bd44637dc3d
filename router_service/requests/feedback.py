"""What clients say of answers: counted once a decision, and logged each time."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum

from prometheus_client import Counter

from router_service.core.decision_log import DecisionRecord, LoggedCall, LoggedFeedback
from router_service.core.errors import InvalidRequestError, NotFoundError
from router_service.requests.background import BackgroundLog
from router_service.requests.planning import GatewayReason
from router_service.settings import ADMIN
from router_service.store.base import FeedbackMark
from router_service.store.guarded import GuardedStore
from router_service.telemetry.metrics import NO_MODEL, Metrics

BINS = 10
"""Tenths of the chosen arm's probability."""


class Verdict(StrEnum):
    """What feedback says of an answer."""

    CORRECT = "correct"
    WRONG = "wrong"
    EXPECTED = "expected"
    """It names the calls that were right; the checker judges later."""


@dataclass(frozen=True, slots=True)
class Given:
    """Feedback on one decision: `correct`, or the calls that were `expected`."""

    decision_id: str
    correct: bool | None = None
    expected: tuple[LoggedCall, ...] | None = None

    @property
    def verdict(self) -> Verdict:
        """What it says."""
        if self.correct is None:
            return Verdict.EXPECTED
        return Verdict.CORRECT if self.correct else Verdict.WRONG


class Feedback:
    """Takes feedback on decisions that are still known.

    Of several for one decision metrics count the first, whichever replica gets it, for a counter
    takes nothing back; the log has all of them, and there the last one counts.
    """

    def __init__(
        self,
        decisions: GuardedStore[DecisionRecord],
        marks: GuardedStore[FeedbackMark],
        background: BackgroundLog,
        metrics: Metrics,
    ) -> None:
        """Take feedback on these decisions."""
        self._decisions = decisions
        self._marks = marks
        self._background = background
        self._metrics = metrics
        for number in range(BINS):
            for counter in self._calibration():
                counter.labels(_bin(number / BINS))

    async def decision(self, decision_id: str, caller: str | None) -> DecisionRecord:
        """Return a decision of a caller's own, or any where it has the admin key.

        Raises NotFoundError, also where it is another's, and StoreError.
        """
        record = await self._decisions.get(decision_id)
        if record is None or caller not in {record.key, ADMIN}:
            raise NotFoundError("decision", decision_id)
        return record

    async def take(self, given: Given, caller: str | None) -> Verdict:
        """Take feedback; raises as `decision`, and InvalidRequestError where it cannot be kept."""
        if given.expected is not None and not self._background.keeps_content:
            raise InvalidRequestError(
                "This gateway keeps no content, and expected calls are content. Send 'correct' "
                "instead, or ask the operator to set decision_log.path and decision_log.content.",
                param="expected",
                code="content_not_kept",
            )
        record = await self.decision(given.decision_id, caller)
        if await self._marks.add(FeedbackMark(id=record.id)):
            self._count(record, given)
        self._background.feedback(
            LoggedFeedback(
                created=time.time(),
                decision_id=record.id,
                arm=record.arm,
                correct=given.correct,
                expected=given.expected,
            )
        )
        return given.verdict

    async def aclose(self) -> None:
        """Let go of connections."""
        await self._marks.aclose()

    def _count(self, record: DecisionRecord, given: Given) -> None:
        arm = _judged_arm(record)
        self._metrics.feedback.labels(arm or NO_MODEL, given.verdict).inc()
        if arm is None or record.probabilities is None or given.correct is None:
            return
        probability = record.probabilities[arm]
        decisions, predicted, correct = self._calibration()
        label = _bin(probability)
        decisions.labels(label).inc()
        predicted.labels(label).inc(probability)
        correct.labels(label).inc(given.correct)

    def _calibration(self) -> tuple[Counter, Counter, Counter]:
        metrics = self._metrics
        return (
            metrics.calibration_decisions,
            metrics.calibration_predicted,
            metrics.calibration_correct,
        )


def _judged_arm(record: DecisionRecord) -> str | None:
    """Return the arm that an answer tells of; none where another model answered in its place."""
    return None if record.reason == GatewayReason.FALLBACK else record.arm


def _bin(probability: float) -> str:
    """Return the lower end of the tenth that a probability is in; 1 is in the last."""
    # Rounded first: 0.7 as a float of 32 bits is a little less.
    return f"{min(int(round(probability * BINS, 6)), BINS - 1) / BINS:.1f}"
