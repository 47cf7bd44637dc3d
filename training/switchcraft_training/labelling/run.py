"""The run itself: asks what has no answer yet, within limits, and keeps each answer at once."""

from __future__ import annotations

from asyncio import TaskGroup
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from threading import Event

from aiolimiter import AsyncLimiter
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_result,
    stop_after_attempt,
    stop_before_delay,
    stop_when_event_set,
    wait_random_exponential,
)

from router_service.core.errors import SwitchcraftError
from switchcraft_training.labelling.answers import Code, Key, Outcome, Refusal, Remedy, Reply
from switchcraft_training.labelling.budget import Budget
from switchcraft_training.labelling.pool import Arm, Endpoint, Pool
from switchcraft_training.labelling.progress import Progress
from switchcraft_training.labelling.sender import Order, Sender
from switchcraft_training.labelling.store import Store
from switchcraft_training.records import Json, Judged

STOP_AFTER_FAILURES = 20
"""Failures in a row after which an arm is stopped: its endpoint is down, or refuses the pool's
parameters."""

_BACKOFF = wait_random_exponential(multiplier=1, max=60)


@dataclass(frozen=True, slots=True)
class Question:
    """One thing to ask: a query, as the Chat Completions request that an arm gets."""

    key: Key
    arm: Arm
    body: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class Plan:
    """Every query of every arm, `attempts` times."""

    rows: Sequence[Judged]
    pool: Pool
    attempts: int

    def questions(self, endpoint: str, answered: set[Key]) -> Iterator[Question]:
        """Yield what an endpoint's arms have not answered yet.

        All arms are asked a query before the next, and all queries before any is asked again: a
        run that the cap ends leaves whole rows.
        """
        arms = self.pool.arms_at(endpoint)
        for attempt in range(self.attempts):
            for example, _ in self.rows:
                for arm in arms:
                    key = Key(example.id, arm.arm, attempt)
                    if key not in answered:
                        yield Question(key, arm, arm.body(example.request))

    def left(self, answered: set[Key]) -> Counter[str]:
        """Return how many questions each arm has yet to answer."""
        return Counter(
            arm.arm
            for arm in self.pool.pool
            for example, _ in self.rows
            for attempt in range(self.attempts)
            if Key(example.id, arm.arm, attempt) not in answered
        )


class Labelling:
    """A run in progress; `stopped` says why of each arm that was given up."""

    def __init__(
        self, plan: Plan, store: Store, sender: Sender, budget: Budget, progress: Progress
    ) -> None:
        self._plan = plan
        self._store = store
        self._sender = sender
        self._budget = budget
        self._progress = progress
        self._failures_in_a_row: Counter[str] = Counter()
        self._ending = Event()
        self.stopped: dict[str, str] = {}

    @property
    def is_ending(self) -> bool:
        """Whether `end` was called."""
        return self._ending.is_set()

    def end(self) -> None:
        """Ask nothing more; what is in flight is awaited, since it is paid."""
        self._ending.set()

    async def run(self, answered: set[Key]) -> None:
        """Ask until nothing is left, the cap is reached or `end` was called.

        Raises SwitchcraftError where answers cannot be kept.
        """
        try:
            async with TaskGroup() as group:
                for name, endpoint in self._plan.pool.endpoints.items():
                    lane = _Lane(self._plan.questions(name, answered), endpoint)
                    for _ in range(endpoint.max_concurrency):
                        group.create_task(self._work(lane))
        except* SwitchcraftError as exc:
            raise exc.exceptions[0] from exc

    async def _work(self, lane: _Lane) -> None:
        for question in lane.questions:
            if self.is_ending or self._budget.is_exhausted:
                return
            if question.key.arm not in self.stopped:
                outcome: Outcome | None = await self._retrying(lane.endpoint)(
                    self._try, question, lane
                )
                if isinstance(outcome, Refusal):
                    self._fail(question, outcome)

    async def _try(self, question: Question, lane: _Lane) -> Outcome | None:
        """Send once and settle what it cost; None where the cap left no room for it."""
        async with lane.pace:
            pass
        reserved_usd = question.arm.reserve_usd(question.body)
        if not await self._budget.reserve(reserved_usd):
            return None
        request = self._store.begin(question.key, reserved_usd)
        order = Order(
            question.arm.endpoint, question.body, self._store.idempotency_key(question.key)
        )
        outcome = _priced(await self._sender.send(order), question.arm)
        charged_usd = self._keep(request, question.key, outcome)
        await self._budget.settle(reserved_usd, charged_usd)
        return outcome

    def _retrying(self, endpoint: Endpoint) -> AsyncRetrying:
        return AsyncRetrying(
            retry=retry_if_result(_may_pass),
            wait=_wait_s,
            stop=stop_after_attempt(1 + endpoint.max_retries)
            | stop_before_delay(endpoint.total_timeout_s)
            | stop_when_event_set(self._ending),
            retry_error_callback=_result,
        )

    def _keep(self, request: int, key: Key, outcome: Outcome) -> float:
        if isinstance(outcome, Reply):
            charged_usd = self._store.answer(request, key, outcome)
            self._failures_in_a_row[key.arm] = 0
            self._progress.answer(key.arm, charged_usd)
        else:
            charged_usd = self._store.refuse(request, outcome)
        self._progress.charge(charged_usd)
        return charged_usd

    def _fail(self, question: Question, refusal: Refusal) -> None:
        self._store.fail(question.key, refusal)
        arm = question.key.arm
        self._progress.fail(arm)
        # A conversation that is too long says nothing of the next one.
        self._failures_in_a_row[arm] += refusal.code is not Code.CONTEXT_LENGTH
        if refusal.remedy is Remedy.STOP_ARM:
            self._stop(arm, f"{refusal.code}: {refusal.detail}")
        elif self._failures_in_a_row[arm] >= STOP_AFTER_FAILURES:
            last = f"{refusal.code}: {refusal.detail}"
            self._stop(arm, f"{STOP_AFTER_FAILURES} failures in a row, the last {last}")

    def _stop(self, arm: str, reason: str) -> None:
        if arm not in self.stopped:
            self.stopped[arm] = reason
            self._progress.drop(arm)
            self._progress.note(f"{arm} is stopped: {reason}")


class _Lane:
    """What the requests to one endpoint share: the questions, and the pace."""

    def __init__(self, questions: Iterator[Question], endpoint: Endpoint) -> None:
        self.questions = questions
        self.endpoint = endpoint
        per_minute = endpoint.requests_per_minute
        # Spaced evenly: after a restart there must be no new burst.
        self.pace = AsyncLimiter(1, 60 / per_minute) if per_minute else nullcontext()


def _may_pass(outcome: Outcome | None) -> bool:
    return isinstance(outcome, Refusal) and outcome.remedy is Remedy.RETRY


def _wait_s(state: RetryCallState) -> float:
    """Wait as long as the endpoint asks for, else longer from try to try."""
    outcome = _result(state)
    asked_s = outcome.retry_after_s if isinstance(outcome, Refusal) else None
    return _BACKOFF(state) if asked_s is None else asked_s


def _result(state: RetryCallState) -> Outcome | None:
    result: Outcome | None = state.outcome.result() if state.outcome else None
    return result


def _priced(outcome: Outcome, arm: Arm) -> Outcome:
    if not isinstance(outcome, Reply) or None in (outcome.input_tokens, outcome.output_tokens):
        return outcome
    usd = arm.price.cost_usd(outcome.input_tokens or 0, outcome.output_tokens or 0, seconds=0)
    return outcome.model_copy(update={"cost_usd": usd})
