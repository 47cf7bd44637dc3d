"""Feedback on answers: schema checks, weak evidence from later turns, clients' verdicts.

One background thread checks and logs answers. No request waits for it.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import anyio.to_thread
import orjson

from router_service.access.key import Key
from router_service.apis.answers import ParsedAnswer, WrittenCall
from router_service.apis.conversation import Json, as_list, unwrap_tool
from router_service.checker.tool_checks import (
    CallChecker,
    CallValidity,
    latest_tool_results,
    parameters_by_tool,
)
from router_service.core.decision_record import (
    AnswerContent,
    Content,
    DecisionRecord,
    LoggedCall,
    LoggedComparison,
    LoggedDecision,
    LoggedEvidence,
    LoggedFeedback,
    Verdict,
)
from router_service.core.errors import InvalidRequestError, StoreError
from router_service.core.reasons import Reason
from router_service.core.refusals import RECORD_NOT_FOUND
from router_service.requests.call import Call
from router_service.requests.parsing import Endpoint
from router_service.settings import DecisionLogSettings
from router_service.store.records import EvidenceMark, FeedbackMark, Records, RememberedCall
from router_service.store.store import Store
from router_service.telemetry.decision_log import BackgroundWorker, DecisionLog
from router_service.telemetry.metrics import NO_MODEL, NO_RELEASE, Metrics, probability_bin
from router_service.telemetry.usage import LaterSum, UsageEntry, UsageHistory

CLOSING_S = 5.0
"""Longest time that a shutdown waits for the log."""

MAX_CALLS = 32
"""Maximum number of an answer's calls that are remembered and compared with earlier calls."""

MAX_NAME_CHARACTERS = 200
"""Longest tool name that is stored unhashed; OpenAI allows 64 characters."""

_INVALID = frozenset({CallValidity.INVALID, CallValidity.UNKNOWN_TOOL})

_LATER_SUMS: Mapping[str, LaterSum] = {
    "tool_error": "tool_errors",
    "repeated_call": "repeated_calls",
}
"""The sum of usage that each kind of evidence counts for."""


class BackgroundLog:
    """Checks answers' calls against their schemas, and writes the decision log."""

    def __init__(
        self,
        settings: DecisionLogSettings,
        metrics: Metrics,
        usage: UsageHistory,
        evidence: WeakEvidence,
    ) -> None:
        """Do nothing until `start`; `evidence` is closed with this object."""
        self._settings = settings
        self._metrics = metrics
        self._usage = usage
        self._log = DecisionLog(settings, metrics)
        self._evidence = evidence
        # The stores of the evidence are asynchronous. This loop runs in the worker's thread.
        self._loop = asyncio.Runner()
        self._worker = BackgroundWorker[Call | LoggedFeedback | LoggedComparison](
            self._handle,
            max_items=settings.max_queued,
            when_idle=self._log.tidy,
            at_end=self._close,
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
        if not (is_checked or is_logged or self._settings.evidence):
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
        reads_body = is_checked or self.keeps_content or settings.evidence
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
        if settings.evidence:
            for found, call in self._loop.run(self._evidence.find(ended, body)):
                self._log.write(found)
                if call.answered is not None:
                    self._usage.add_later(UsageEntry(*call.answered), _LATER_SUMS[found.kind])

    def _count_calls(self, ended: Call, validities: Sequence[CallValidity]) -> None:
        for validity, count in Counter(validities).items():
            self._metrics.tool_calls.labels(ended.accepted.model.name, validity).inc(count)
        invalid = sum(validity in _INVALID for validity in validities)
        if invalid and ended.record is not None:
            self._usage.add_later(UsageEntry.of(ended.record), "invalid_calls", invalid)

    def _close(self) -> None:
        self._log.close()
        with self._loop as loop:
            loop.run(self._evidence.aclose())


class WeakEvidence:
    """Finds weak evidence, in a conversation's next turn, that an earlier call was wrong.

    The evidence is a tool result that is an error, or the same tool called again with other
    arguments. It is weak because the call may still have been right.

    Turns may arrive at different replicas, so calls are remembered in the shared store. Each call
    counts once, even if its result is sent again.
    """

    def __init__(self, store: Store, on_error: Callable[[str], None], *, keeps_names: bool) -> None:
        """Remember calls in a store, which only this object's event loop uses.

        Tool names are hashed if `keeps_names` is false, or if they exceed `MAX_NAME_CHARACTERS`.
        """
        self._store = store
        self._calls = Records(store, RememberedCall, on_error)
        self._marks = Records(store, EvidenceMark, on_error)
        self._keeps_names = keeps_names

    async def find(
        self, ended: Call, body: Mapping[str, Json]
    ) -> Sequence[tuple[LoggedEvidence, RememberedCall]]:
        """Return evidence that earlier calls were wrong, and remember the current answer's calls.

        While the store is unavailable, nothing is found or remembered.
        """
        results = latest_tool_results(body)
        answer, plan, record = ended.accepted.answer, ended.plan, ended.record
        next_calls = answer.calls[:MAX_CALLS] if answer else ()
        conversation = plan.request.conversation_id

        def key(call_id: str) -> str:
            # The conversation is included, because some models number their calls anew in each
            # one. The API key is included, so that only its client can provide evidence.
            facts = "\0".join((ended.key.name or "", conversation, call_id))
            return _sha256(facts.encode(errors="surrogatepass"))[:32]

        found: dict[object, tuple[LoggedEvidence, RememberedCall]] = {}
        try:
            ids = [key(result.call_id) for result in results]
            calls = await asyncio.gather(*map(self._calls.get, ids))
            for call, result in zip(calls, results, strict=True):
                if call is None:
                    continue
                kind: Literal["tool_error", "repeated_call"] = "tool_error"
                if not result.is_error:
                    kind = "repeated_call"
                    is_repeated = any(
                        self._tool(next_call) == call.tool
                        and _arguments_sha256(next_call) != call.arguments_sha256
                        for next_call in next_calls
                    )
                    if not is_repeated:
                        continue
                if await self._marks.add(EvidenceMark(id=call.id)):
                    # If a third call repeats two parallel calls of one tool, that counts only once.
                    line = LoggedEvidence(
                        created=time.time(),
                        decision_id=call.decision_id,
                        arm=call.arm,
                        kind=kind,
                        tool=call.tool,
                    )
                    found[call.decision_id, call.tool, kind] = line, call
            # A fallback's calls are not remembered, because the chosen arm did not make them.
            arm = None if ended.is_fallback else ended.arm
            if arm is not None:
                remembered = [
                    RememberedCall(
                        id=key(call.id),
                        decision_id=ended.decision_id,
                        arm=arm,
                        tool=self._tool(call),
                        arguments_sha256=_arguments_sha256(call),
                        answered=None if record is None else UsageEntry.of(record),
                    )
                    for call in next_calls
                    if call.id
                ]
                await asyncio.gather(*map(self._calls.put, remembered))
        except StoreError:
            return ()  # counted and logged by the store
        return list(found.values())

    async def aclose(self) -> None:
        """Close the store's connections."""
        with suppress(StoreError):
            await self._store.aclose()

    def _tool(self, call: WrittenCall) -> str:
        is_kept = self._keeps_names and len(call.name) <= MAX_NAME_CHARACTERS
        return call.name if is_kept else _sha256(call.name.encode())[:32]


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


def _arguments_sha256(call: WrittenCall) -> str:
    """Return a hash of the decoded arguments, so that their formatting does not matter."""
    try:
        return _sha256(orjson.dumps(call.decoded(), option=orjson.OPT_SORT_KEYS))
    except orjson.JSONEncodeError:  # nested too deep to be written
        return _sha256(call.arguments.encode())


def _sha256(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


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
