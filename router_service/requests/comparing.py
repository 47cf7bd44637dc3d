"""A second model answers a share of the requests in the background, to compare with it.

It is asked after the delivered answer has been recorded, so that it delays nothing.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable

from router_service.apis.conversation import as_list
from router_service.core.decision_record import LoggedComparison
from router_service.core.errors import SwitchcraftError
from router_service.core.money import to_nusd
from router_service.requests.asking import ask_model, background_client
from router_service.requests.call import Call, Ending
from router_service.requests.candidates import Candidate, answer_cost_usd
from router_service.requests.feedback import BackgroundLog, answer_content
from router_service.requests.parsing import ParsedRequest
from router_service.requests.pool import lacks
from router_service.runtime.engine import Engine
from router_service.settings import Model
from router_service.telemetry.comparisons import Comparison, Comparisons
from router_service.telemetry.usage import clean
from router_service.verifier.answer_features import Question, relate

MAX_RUNNING = 4
"""Comparisons of one process that run at the same time; further requests are not compared. Each
keeps its request's body in memory."""

_log = logging.getLogger("switchcraft.compare")


class ModelComparer:
    """Asks `router.compare.model` a share of the requests again, within its budget."""

    def __init__(
        self,
        engine: Callable[[], Engine],
        stored: Comparisons,
        background: BackgroundLog,
    ) -> None:
        """Compare nothing yet; `engine` returns the one that answers new requests."""
        self._engine = engine
        self._stored = stored
        self._background = background
        self._running: dict[asyncio.Task[None], float] = {}
        """The comparisons in progress, with the expected cost of each in USD."""

    def answered(self, call: Call) -> None:
        """Begin a comparison of a request that has been recorded, if it is drawn."""
        settings = self._engine().settings.router.compare
        if settings.model is None or random.random() >= settings.share:  # noqa: S311 - not a secret
            return
        try:
            model = _comparable_model(call, settings.model)
        except SwitchcraftError:  # a part of the request that only upstreams read is malformed
            return
        if model is None:
            return
        usage, seconds = call.accepted.usage, call.accepted.seconds
        expected_usd = answer_cost_usd(model, usage, seconds)
        if expected_usd is None or len(self._running) >= MAX_RUNNING:
            _log.debug("comparison skipped: too many at once, or the price is unknown")
            return
        reserved_usd = sum(self._running.values()) + expected_usd
        if self._stored.spent_usd + reserved_usd > settings.budget_usd:
            _log.debug("comparison skipped: router.compare.budget_usd is spent")
            return
        task = asyncio.create_task(self._compare(call, model))
        self._running[task] = expected_usd
        task.add_done_callback(self._running.pop)

    async def aclose(self) -> None:
        """Cancel what is running."""
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _compare(self, call: Call, model: Model) -> None:
        try:
            async with self._engine() as engine:
                request = ParsedRequest(call.request.endpoint, call.request.body.body)
                other = await ask_model(
                    background_client(engine),
                    call.plan.planner,
                    request,
                    model,
                    key=call.key,
                    headers=call.headers,
                )
            is_same = await asyncio.to_thread(_makes_same_calls, request, call.accepted, other)
            self._store(call, other, is_same)
        except Exception:  # noqa: BLE001 - a defect here must not end the task unseen
            _log.exception("comparison failed: decision=%s model=%s", call.decision_id, model.name)

    def _store(self, call: Call, other: Candidate, is_same: bool | None) -> None:
        """Store and log a comparison."""
        record, accepted = call.record, call.accepted
        assert record is not None  # noqa: S101 - for types; the call has been recorded
        cost_usd, other_usd = record.actual_cost_usd, other.cost_usd or 0.0
        answers = [each.answer for each in (accepted, other) if each.answer is not None]
        tool = next((made.name for answer in answers for made in answer.calls), None)
        self._stored.add(
            Comparison(
                id=call.decision_id,
                ended_s=time.time(),
                key=record.key and clean(record.key),
                tool=tool and clean(tool),
                model=clean(accepted.model.name),
                other=clean(other.model.name),
                is_same=is_same,
                cost_nusd=None if cost_usd is None else to_nusd(cost_usd),
                other_nusd=to_nusd(other_usd),
                seconds=record.latency_s,
                other_seconds=other.seconds,
            )
        )
        if is_same is None or call.plan.decision is None:
            return
        keeps_content, usage = self._background.keeps_content, other.usage
        self._background.write(
            LoggedComparison(
                created=time.time(),
                decision_id=call.decision_id,
                model=other.model.name,
                is_same=is_same,
                cost_usd=other_usd,
                seconds=other.seconds,
                prompt_tokens=usage.prompt_tokens if usage else None,
                completion_tokens=usage.completion_tokens if usage else None,
                content=answer_content(other.answer) if keeps_content else None,
            )
        )


def _comparable_model(call: Call, name: str) -> Model | None:
    """Return the model that may answer a request again; None if it may not, or has done so.

    A request whose answer cannot be verified is not repeated: it offers no tools, or its provider
    would keep or run something.
    """
    request = call.request
    is_answered = call.ending is Ending.COMPLETE and call.status < 400
    if not (is_answered and call.accepted.answer and request.endpoint.is_routed):
        return None
    if request.unverifiable is not None or any(each.model.name == name for each in call.candidates):
        return None
    model = call.plan.planner.pool_for(call.key).models.get(name)
    return None if model is None or lacks(model, request) else model


def _makes_same_calls(request: ParsedRequest, accepted: Candidate, other: Candidate) -> bool | None:
    """Return whether two answers make the same calls by structure; None without the other one."""
    if other.answer is None or not other.is_complete:
        return None
    question = Question(request.conversation, as_list(request.decoded().get("tools")))
    relation = relate(question, question.read(accepted.answer), question.read(other.answer))
    return relation.is_same
