"""What is learned from an answer once it has ended: do its calls fit, and a line for the log."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence

import anyio.to_thread
import orjson

from router_service.core.decision_log import LoggedFeedback
from router_service.core.messages import Json
from router_service.core.schema_check import CallChecker, CallValidity, parameters_by_tool
from router_service.requests.evidence import Evidence
from router_service.requests.lines import content_of, decision_line
from router_service.requests.recorder import Ended
from router_service.settings import DecisionLogSettings
from router_service.telemetry.background import BackgroundWorker
from router_service.telemetry.decision_log import DecisionLog
from router_service.telemetry.metrics import Metrics

CLOSING_S = 5.0
"""Longest time that a gateway which ends waits for its log."""


class Aftermath:
    """Takes note of requests that have ended; all work is done in a thread of its own."""

    def __init__(self, settings: DecisionLogSettings, metrics: Metrics, evidence: Evidence) -> None:
        """Note nothing before `start`; `evidence` is this one's alone."""
        self._settings = settings
        self._metrics = metrics
        self._log = DecisionLog(settings, metrics)
        self._evidence = evidence
        self._loop = asyncio.Runner()
        self._afterwards = BackgroundWorker[Ended | LoggedFeedback](
            self._handle,
            max_items=settings.max_queued,
            on_length=metrics.log_queued.set,
            when_idle=self._log.tidy,
            at_end=self._end,
        )

    @property
    def keeps_content(self) -> bool:
        """Whether the log holds what was said."""
        return self._settings.path is not None and self._settings.content

    def start(self) -> None:
        """Begin to work, with the log where there is one."""
        self._log.start()
        self._afterwards.start()

    async def aclose(self) -> None:
        """Finish what is queued, within `CLOSING_S`."""
        await anyio.to_thread.run_sync(self._afterwards.close, CLOSING_S)

    def answered(self, ended: Ended) -> None:
        """Take note of an answer; what is too much is dropped and counted."""
        if not self._concerns(ended):
            return
        said = ended.outcome.said
        size_bytes = sum(map(len, ended.plan.request.body.parts)) + (said.characters if said else 0)
        if self._afterwards.put(ended, size_bytes):
            return
        if self._is_logged(ended):
            self._metrics.log_dropped.labels("full").inc()
        if self._settings.check_calls:
            self._count_calls(ended, [CallValidity.UNCHECKED] * _calls(ended))

    def feedback(self, line: LoggedFeedback) -> None:
        """Take note of what a client says of an answer."""
        if self._settings.path is not None and not self._afterwards.put(line):
            self._metrics.log_dropped.labels("full").inc()

    def _concerns(self, ended: Ended) -> bool:
        is_checked = self._settings.check_calls and _calls(ended) > 0
        return is_checked or self._settings.evidence or self._is_logged(ended)

    def _is_logged(self, ended: Ended) -> bool:
        return self._settings.path is not None and ended.plan.decision is not None

    def _handle(self, item: Ended | LoggedFeedback) -> None:
        if isinstance(item, LoggedFeedback):
            self._log.write(item, item.type)
        else:
            self._note(item)

    def _note(self, ended: Ended) -> None:
        body = orjson.loads(ended.plan.request.body.with_model(""))
        fits = self._fits(ended, body)
        self._count_calls(ended, fits)
        plan = ended.plan
        if plan.decision is not None:
            said = ended.outcome.said
            content = content_of(plan.request.endpoint, body, said) if self.keeps_content else None
            line = decision_line(ended, plan.decision, fits, content)
            self._log.write(line, line.type)
        if self._settings.evidence:
            self._note_evidence(ended, body)

    def _note_evidence(self, ended: Ended, body: Mapping[str, Json]) -> None:
        for line in self._loop.run(self._evidence.note(ended, body)):
            self._log.write(line, line.type)
            self._metrics.weak_evidence.labels(line.arm, line.kind).inc()

    def _end(self) -> None:
        self._log.close()
        with self._loop as loop:
            loop.run(self._evidence.aclose())

    def _fits(self, ended: Ended, body: Mapping[str, Json]) -> Sequence[CallValidity]:
        said = ended.outcome.said
        if not self._settings.check_calls or said is None or not said.calls:
            return ()
        checker = CallChecker(parameters_by_tool(body))
        return [checker.check(call) for call in said.calls]

    def _count_calls(self, ended: Ended, fits: Sequence[CallValidity]) -> None:
        for found, count in Counter(fits).items():
            self._metrics.tool_calls.labels(ended.outcome.model.name, found).inc(count)


def _calls(ended: Ended) -> int:
    said = ended.outcome.said
    return len(said.calls) if said else 0
