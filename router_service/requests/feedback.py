"""Feedback from clients: counted once for each decision, and logged every time."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum

from router_service.core.decision_log import DecisionRecord, LoggedCall, LoggedFeedback
from router_service.core.errors import InvalidRequestError, NotFoundError
from router_service.requests.background import BackgroundLog
from router_service.requests.planning import GatewayReason
from router_service.settings import ADMIN
from router_service.store.base import FeedbackMark
from router_service.store.guarded import GuardedStore
from router_service.telemetry.metrics import NO_MODEL, Metrics

BINS = 10
"""Number of bins for the chosen arm's probability in calibration metrics."""


class Verdict(StrEnum):
    """The kind of feedback on an answer."""

    CORRECT = "correct"
    WRONG = "wrong"
    EXPECTED = "expected"
    """The feedback has the expected calls; the checker judges the answer later."""


@dataclass(frozen=True, slots=True)
class ClientFeedback:
    """Feedback on one decision: `correct`, or the calls that were `expected`."""

    decision_id: str
    correct: bool | None = None
    expected: tuple[LoggedCall, ...] | None = None

    @property
    def verdict(self) -> Verdict:
        """The kind of feedback."""
        if self.correct is None:
            return Verdict.EXPECTED
        return Verdict.CORRECT if self.correct else Verdict.WRONG


class Feedback:
    """Takes feedback on decisions that are still stored.

    If a decision gets several, metrics count only the first one, at whichever replica, because a
    counter cannot be decreased. The log has all of them, and training uses the last one.
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
        self._calibration = (
            metrics.calibration_decisions,
            metrics.calibration_predicted,
            metrics.calibration_correct,
        )
        for number in range(BINS):
            for counter in self._calibration:
                counter.labels(probability_bin(number / BINS))

    async def decision(self, decision_id: str, caller: str | None) -> DecisionRecord:
        """Return one of the caller's decisions; the admin key may read all.

        Raises StoreError, and NotFoundError also if the decision is another key's.
        """
        record = await self._decisions.get(decision_id)
        if record is None or caller not in {record.key, ADMIN}:
            raise NotFoundError("decision", decision_id)
        return record

    async def take(self, given: ClientFeedback, caller: str | None) -> Verdict:
        """Count and log feedback.

        Raises as `decision`, and InvalidRequestError for expected calls without a log of content.
        """
        if given.expected is not None and not self._background.keeps_content:
            raise InvalidRequestError(
                "This gateway keeps no content, and expected calls are content. Send 'correct' "
                "instead, or ask the operator to set decision_log.path and decision_log.content.",
                param="expected",
                code="content_not_kept",
            )
        record = await self.decision(given.decision_id, caller)
        if await self._marks.add(FeedbackMark(id=record.id)):
            # A fallback's answer says nothing about the chosen arm.
            arm = None if record.reason == GatewayReason.FALLBACK else record.arm
            self._metrics.feedback.labels(arm or NO_MODEL, given.verdict).inc()
            if arm is not None and record.probabilities is not None and given.correct is not None:
                probability = record.probabilities[arm]
                label = probability_bin(probability)
                decisions, predicted, correct = self._calibration
                decisions.labels(label).inc()
                predicted.labels(label).inc(probability)
                correct.labels(label).inc(given.correct)
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
        """Close the store's connections."""
        await self._marks.aclose()


def probability_bin(probability: float) -> str:
    """Return the lower end of a probability's bin; 1 is in the last bin."""
    # Rounded first, because 0.7 as a 32-bit float is slightly less than 0.7.
    return f"{min(int(round(probability * BINS, 6)), BINS - 1) / BINS:.1f}"
