"""Feedback on answers: schema checks and clients' verdicts.

One background thread checks and logs answers. No request waits for it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import anyio.to_thread

from router_service.access.key import Key
from router_service.apis.answers import ParsedAnswer
from router_service.apis.conversation import Json, as_list, unwrap_tool
from router_service.checker.tool_checks import (
    CallChecker,
    CallValidity,
    parameters_by_tool,
)
from router_service.core.decision_record import (
    AnswerContent,
    Content,
    DecisionRecord,
    LoggedCall,
    LoggedComparison,
    LoggedDecision,
    LoggedFeedback,
    Verdict,
)
from router_service.core.errors import InvalidRequestError
from router_service.core.reasons import Reason
from router_service.core.refusals import RECORD_NOT_FOUND
from router_service.requests.call import Call
from router_service.requests.parsing import Endpoint
from router_service.settings import DecisionLogSettings
from router_service.store.records import FeedbackMark, Records
from router_service.telemetry.decision_log import BackgroundWorker, DecisionLog
from router_service.telemetry.metrics import NO_MODEL, NO_RELEASE, Metrics, probability_bin
from router_service.telemetry.usage import LaterSum, UsageEntry, UsageHistory

CLOSING_S = 5.0
"""Longest time that a shutdown waits for the log."""

_INVALID = frozenset({CallValidity.INVALID, CallValidity.UNKNOWN_TOOL})


class BackgroundLog:
    """Checks answers' calls against their schemas, and writes the decision log."""

    def __init__(
        self,
        settings: DecisionLogSettings,
        metrics: Metrics,
        usage: UsageHistory,
    ) -> None:
        """Do nothing until `start`."""
        self._settings = settings
        self._metrics = metrics
        self._usage = usage
        self._log = DecisionLog(settings, metrics)
        self._worker = BackgroundWorker[Call | LoggedFeedback | LoggedComparison](
            self._handle,
            max_items=settings.max_queued,
            when_idle=self._log.tidy,
            at_end=self._log.close,
        )

    @property
    def keeps_content(self) -> bool:
        """Whether the log contains requests and answers."""
        return self._settings.path is not None and self._settings.content

    def start(self) -> None:
        """Open the log, if one is configured, and start the thread."""
        self._log.start()
        self._worker.start()

    async def aclose(self) -> None:
        """Finish what is queued, within `CLOSING_S`."""
        await anyio.to_thread.run_sync(self._worker.close, CLOSING_S)

    def answered(self, ended: Call) -> None:
        """Queue a request that has ended; if the queue is full, drop and count it."""
        answer = ended.accepted.answer
        calls = len(answer.calls) if answer else 0
        is_checked = self._settings.check_calls and calls > 0
        is_logged = self._settings.path is not None and ended.plan.decision is not None
        if not (is_checked or is_logged):
            return
        size_bytes = ended.plan.request.body.size_bytes
        size_bytes += sum(c.answer.characters for c in ended.candidates if c.answer)
        if self._worker.put(ended, size_bytes):
            return
        if is_logged:
            self._metrics.lost_records.labels("decision_log", "full").inc()
        if self._settings.check_calls:
            self._count_calls(ended, [CallValidity.UNCHECKED] * calls)

    def write(self, line: LoggedFeedback | LoggedComparison) -> None:
        """Queue a client's feedback on an answer, or another model's answer, for the log."""
        if self._settings.path is not None and not self._worker.put(line):
            self._metrics.lost_records.labels("decision_log", "full").inc()

    def _handle(self, item: Call | LoggedFeedback | LoggedComparison) -> None:
        if not isinstance(item, Call):
            self._log.write(item)
            return
        ended, answer, settings = item, item.accepted.answer, self._settings
        is_checked = settings.check_calls and answer is not None and bool(answer.calls)
        reads_body = is_checked or self.keeps_content
        validities: Sequence[CallValidity] = ()
        body: Mapping[str, Json] = {}
        if reads_body:
            try:
                ended.plan.request.read_content()
                body = ended.plan.request.decoded()
            except InvalidRequestError:  # the named model's upstream has accepted it
                unread = len(answer.calls) if is_checked and answer is not None else 0
                self._count_calls(ended, [CallValidity.UNCHECKED] * unread)
                return
        if is_checked and answer is not None:
            checker = CallChecker(parameters_by_tool(body))
            validities = [checker.check(call) for call in answer.calls]
            self._count_calls(ended, validities)
        if settings.path is not None:
            content = None
            if settings.content:
                content = logged_content(ended.plan.request.endpoint, body, answer)
            line = logged_decision(ended, validities, content)
            if line is not None:
                self._log.write(line)

    def _count_calls(self, ended: Call, validities: Sequence[CallValidity]) -> None:
        for validity, count in Counter(validities).items():
            self._metrics.tool_calls.labels(ended.accepted.model.name, validity).inc(count)
        invalid = sum(validity in _INVALID for validity in validities)
        if invalid and ended.record is not None:
            self._usage.add_later(UsageEntry.of(ended.record), "invalid_calls", invalid)


def logged_decision(
    ended: Call, validities: Sequence[CallValidity], content: Content | None
) -> LoggedDecision | None:
    """Return the log's line for a routed request, or None if it was not routed."""
    record, plan, accepted = ended.record, ended.plan, ended.accepted
    artifact = plan.planner.router.artifact
    if record is None or plan.decision is None:
        return None
    decision = record.decision()
    candidates = decision.candidates
    if candidates and content is not None:
        candidates = tuple(
            candidate.model_copy(update={"content": answer_content(answered.answer)})
            for candidate, answered in zip(candidates, ended.asked.values(), strict=True)
        )
    calls_fit = True if validities and CallValidity.UNCHECKED not in validities else None
    if any(validity in _INVALID for validity in validities):
        calls_fit = False
    recorded: dict[str, Any] = {
        **dict(decision),
        # The record's reason may be `fallback`, for which the log has a flag.
        "reason": plan.decision.reason if accepted.arm is None else record.reason,
        "candidates": candidates,
    }
    return LoggedDecision(
        **recorded,
        conversation=plan.request.conversation_id,
        request_sha256=plan.request.sha256,
        artifact=artifact.manifest.name,
        artifact_sha256=artifact.sha256,
        features=plan.decision.features,
        is_fallback=ended.is_fallback,
        cached_tokens=accepted.usage.cached_tokens if accepted.usage else None,
        answer_sha256=accepted.answer.sha256() if accepted.answer else None,
        calls_fit=calls_fit,
        content=content,
    )


def logged_content(
    endpoint: Endpoint, body: Mapping[str, Json], answer: ParsedAnswer | None
) -> Content:
    """Return the request and the answer in the form of Chat Completions."""
    api = endpoint.api
    messages = as_list(body.get("messages")) if api is None else api.chat_messages(body)
    # The providers' built-in tools have no function, and are left out.
    entries = [*as_list(body.get("tools"))]
    entries += ({"function": entry} for entry in as_list(body.get("functions")))
    functions = [tool for tool in map(unwrap_tool, entries) if tool is not None]
    tools = [
        {"type": "function", "function": {n: v for n, v in function.items() if n != "type"}}
        for function in functions
    ]
    request = {"messages": list(messages), "tools": tools}
    return Content(request=request, **dict(answer_content(answer)))


def answer_content(answer: ParsedAnswer | None) -> AnswerContent:
    """Return an answer's text, and its calls if their arguments can be decoded."""
    if answer is None:
        return AnswerContent()
    decoded = [(call.name, call.decoded()) for call in answer.calls]
    calls: tuple[LoggedCall, ...] | None = None
    if all(arguments is not None for _, arguments in decoded):
        calls = tuple(LoggedCall(name=name, arguments=args or {}) for name, args in decoded)
    return AnswerContent(calls=calls, text=answer.text)


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

    If a decision gets feedback several times, at one or more replicas, metrics count only the first
    one, because a counter cannot be decreased. The log has all of them; training uses the last one.
    """

    def __init__(
        self,
        decisions: Records[DecisionRecord],
        marks: Records[FeedbackMark],
        background: BackgroundLog,
        metrics: Metrics,
        usage: UsageHistory,
    ) -> None:
        """Take feedback on the decisions in a store."""
        self._decisions = decisions
        self._marks = marks
        self._background = background
        self._metrics = metrics
        self._usage = usage
        self._calibration = (
            metrics.calibration_decisions,
            metrics.calibration_predicted,
        )

    async def decision(self, decision_id: str, key: Key) -> DecisionRecord:
        """Return one of a key's decisions; the admin key may read all.

        Raises StoreError, and InvalidRequestError if the decision is unknown or another key's.
        """
        record = await self._decisions.get(decision_id)
        if record is None or not (key.is_admin or key.name == record.key):
            raise RECORD_NOT_FOUND.error(kind="decision", identifier=decision_id)
        return record

    async def take(self, given: ClientFeedback, key: Key) -> Verdict:
        """Count and log feedback.

        Raises the errors of `decision`, and InvalidRequestError for expected calls if the decision
        log does not keep content.
        """
        if given.expected is not None and not self._background.keeps_content:
            raise InvalidRequestError(
                "This gateway does not log content, which includes expected calls. Send 'correct' "
                "instead, or ask the operator to set decision_log.path and decision_log.content.",
                param="expected",
                code="content_not_kept",
            )
        record = await self.decision(given.decision_id, key)
        if await self._marks.add(FeedbackMark(id=record.id)):
            # Feedback on a fallback does not count for the chosen arm, which did not answer.
            arm = None if record.reason == Reason.FALLBACK else record.arm
            release = record.release or NO_RELEASE
            self._metrics.feedback.labels(arm or NO_MODEL, release, given.verdict).inc()
            if given.correct is not None:
                name: LaterSum = "feedback_correct" if given.correct else "feedback_wrong"
                self._usage.add_later(UsageEntry.of(record), name)
            # A verified answer was accepted for its content, so it is more often correct than its
            # arm's probability says.
            probabilities = None if record.candidates else record.probabilities
            if arm is not None and probabilities is not None and given.correct is not None:
                probability = probabilities[arm]
                label = probability_bin(probability)
                self._metrics.calibration_decisions.labels(label, given.verdict).inc()
                self._metrics.calibration_predicted.labels(label).inc(probability)
        self._background.write(
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
        """Finish the writes."""
        await self._marks.drain()
