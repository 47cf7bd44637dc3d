"""A labelling run: asks all unanswered questions within limits, and saves each answer.

`ask_all` runs it on the console: progress bar, Ctrl-C, and what to do if questions are left.
"""

from __future__ import annotations

import asyncio
import logging
import math
import signal
from asyncio import TaskGroup
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from threading import Event
from typing import Final

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

from router_service.apis.conversation import Json
from router_service.core.errors import SwitchcraftError
from switchcraft_training.labelling.answers import (
    FailureCode,
    QuestionKey,
    Remedy,
    Reply,
    RequestFailure,
    RequestResult,
)
from switchcraft_training.labelling.pool import Arm, Endpoint, Pool
from switchcraft_training.labelling.sender import Sender
from switchcraft_training.labelling.store import Store
from switchcraft_training.progress import Bar
from switchcraft_training.records import Judged

STOP_AFTER_FAILURES = 20
"""An arm is stopped after this many consecutive failures, because its endpoint is down or rejects
the pool's parameters."""

_BACKOFF = wait_random_exponential(multiplier=1, max=60)

COMPLETE, FAILED, CAPPED, INTERRUPTED = 0, 1, 3, 130
"""Exit statuses: all questions answered, some questions failed, spending cap reached, Ctrl-C."""

AGAIN: Final = "run the same command again to continue"


@dataclass(frozen=True, slots=True)
class Question:
    """A query to ask one arm, with the body of the Chat Completions request."""

    key: QuestionKey
    arm: Arm
    body: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class Plan:
    """All questions of a run: every query to every arm, `attempts` times."""

    rows: Sequence[Judged]
    pool: Pool
    attempts: int

    def questions(self, endpoint: str, answered: set[QuestionKey]) -> Iterator[Question]:
        """Yield the unanswered questions to an endpoint's arms.

        All arms get a query before any arm gets the next query, and all queries are asked before
        any query is repeated. If the spending cap ends a run, the queries that were asked therefore
        have answers from all arms.
        """
        arms = [arm for arm in self.pool.pool if arm.endpoint == endpoint]
        for attempt in range(self.attempts):
            for example, _ in self.rows:
                for arm in arms:
                    key = QuestionKey(example.id, arm.arm, attempt)
                    if key not in answered:
                        yield Question(key, arm, arm.body(example.request))

    def count_unanswered(self, answered: set[QuestionKey]) -> Counter[str]:
        """Return the number of unanswered questions of each arm."""
        return Counter(
            arm.arm
            for arm in self.pool.pool
            for example, _ in self.rows
            for attempt in range(self.attempts)
            if QuestionKey(example.id, arm.arm, attempt) not in answered
        )


class SpendingBudget:
    """Budget under a spending cap: each request's cost is reserved before the request is sent.

    An instance may be used from only one event loop.
    """

    def __init__(self, cap_usd: float | None, spent_usd: float) -> None:
        self._cap_usd = math.inf if cap_usd is None else cap_usd
        self.spent_usd = spent_usd
        """The amount spent so far."""
        self._reserved_usd = 0.0
        self._in_flight = 0
        self._settled = asyncio.Condition()
        self.refused_usd: float | None = None
        """The first amount that did not fit under the cap; all later amounts are refused too."""

    @property
    def is_exhausted(self) -> bool:
        """Whether an amount was refused."""
        return self.refused_usd is not None

    async def reserve(self, usd: float) -> bool:
        """Reserve the most that a request may cost; return False if the cap does not allow it.

        If the amount does not fit, waits for the requests in flight, because they may cost less
        than the amounts that were reserved for them.
        """
        async with self._settled:
            while not self._fits(usd) and self._in_flight and not self.is_exhausted:
                await self._settled.wait()
            if self.is_exhausted or not self._fits(usd):
                self.refused_usd = usd if self.refused_usd is None else self.refused_usd
                self._settled.notify_all()
                return False
            self._reserved_usd += usd
            self._in_flight += 1
            return True

    async def settle(self, reserved_usd: float, spent_usd: float) -> None:
        """Replace a request's reserved cost by its actual cost."""
        async with self._settled:
            self._reserved_usd -= reserved_usd
            self.spent_usd += spent_usd
            self._in_flight -= 1
            self._settled.notify_all()

    def _fits(self, usd: float) -> bool:
        return self.spent_usd + self._reserved_usd + usd <= self._cap_usd


class ProgressBar(Bar):
    """Progress on stderr with counts, cost and estimated remaining cost; a context manager."""

    def __init__(self, unanswered: Mapping[str, int], answered: int, spent_usd: float) -> None:
        """Start with each arm's unanswered questions, and the answers and cost of earlier runs."""
        super().__init__("asking", answered + sum(unanswered.values()), "questions", done=answered)
        self._left = Counter(unanswered)
        self._costs_usd: defaultdict[str, float] = defaultdict(float)
        self._answered: Counter[str] = Counter()
        self._spent_usd = spent_usd
        self.failed = 0
        self._show_costs()

    @property
    def left_usd(self) -> float:
        """The estimated cost of the remaining questions, from each arm's mean cost in this run.

        Arms without an answer in this run are not included. Failed questions are not included
        either, because this run does not ask them again.
        """
        return sum(
            self._left[arm] * self._costs_usd[arm] / count for arm, count in self._answered.items()
        )

    def add_cost(self, usd: float) -> None:
        """Add the cost of a request, or its possible cost if the actual cost is unknown."""
        self._spent_usd += usd
        self._show_costs()

    def add_answer(self, arm: str, cost_usd: float) -> None:
        """Count an answer."""
        self._left[arm] -= 1
        self._answered[arm] += 1
        self._costs_usd[arm] += cost_usd
        self.update()

    def add_failure(self, arm: str) -> None:
        """Count a question that remains without an answer."""
        self._left[arm] -= 1
        self.failed += 1
        self._show_costs()

    def drop_arm(self, arm: str) -> None:
        """Leave a stopped arm out of the estimate."""
        self._left[arm] = 0

    def _show_costs(self) -> None:
        usd = f"{self._spent_usd:.4f} USD, ~{self.left_usd:.4f} to go"
        failed = f", {self.failed} failed" if self.failed else ""
        self.show(usd + failed)


class _EndpointQueue:
    """The unanswered questions to one endpoint, and the endpoint's rate limit."""

    def __init__(self, questions: Iterator[Question], endpoint: Endpoint) -> None:
        self.questions = questions
        self.endpoint = endpoint
        per_minute = endpoint.requests_per_minute
        # A capacity of one request spaces requests evenly, so that a restart causes no burst.
        self.rate_limit = AsyncLimiter(1, 60 / per_minute) if per_minute else nullcontext()


class LabellingRun:
    """A run in progress; `stopped` maps each stopped arm to the reason why it was stopped."""

    def __init__(
        self,
        plan: Plan,
        store: Store,
        sender: Sender,
        budget: SpendingBudget,
        progress: ProgressBar,
    ) -> None:
        self._plan = plan
        self._store = store
        self._sender = sender
        self._budget = budget
        self._progress = progress
        self._consecutive_failures: Counter[str] = Counter()
        self._ending = Event()
        self.stopped: dict[str, str] = {}

    @property
    def is_ending(self) -> bool:
        """Whether `end` was called."""
        return self._ending.is_set()

    def end(self) -> None:
        """Ask no more questions; requests in flight are completed, because they are paid."""
        self._ending.set()

    async def run(self, answered: set[QuestionKey]) -> None:
        """Ask all unanswered questions, unless the cap is reached or `end` is called before.

        Raises SwitchcraftError if answers cannot be saved.
        """
        try:
            async with TaskGroup() as group:
                for name, endpoint in self._plan.pool.endpoints.items():
                    queue = _EndpointQueue(self._plan.questions(name, answered), endpoint)
                    for _ in range(endpoint.max_concurrency):
                        group.create_task(self._work(queue))
        except* SwitchcraftError as exc:
            raise exc.exceptions[0] from exc

    async def _work(self, queue: _EndpointQueue) -> None:
        """Ask the questions of a queue one after the other, with retries.

        An arm is stopped if a failure would affect its other questions too, or after
        `STOP_AFTER_FAILURES` consecutive failures.
        """
        for question in queue.questions:
            if self.is_ending or self._budget.is_exhausted:
                return
            if question.key.arm in self.stopped:
                continue
            retrying = AsyncRetrying(
                retry=retry_if_result(
                    lambda result: (
                        isinstance(result, RequestFailure) and result.remedy is Remedy.RETRY
                    )
                ),
                wait=_wait_s,
                stop=stop_after_attempt(1 + queue.endpoint.max_retries)
                | stop_before_delay(queue.endpoint.total_timeout_s)
                | stop_when_event_set(self._ending),
                retry_error_callback=_result_of,
            )
            result: RequestResult | None = await retrying(self._try_once, question, queue)
            if not isinstance(result, RequestFailure):
                continue
            arm = question.key.arm
            self._store.save_failure(question.key, result)
            self._progress.add_failure(arm)
            # If a conversation is too long, the arm can still answer other conversations.
            self._consecutive_failures[arm] += result.code is not FailureCode.CONTEXT_LENGTH
            reason = f"{result.code}: {result.detail}"
            if result.remedy is not Remedy.STOP_ARM:
                if self._consecutive_failures[arm] < STOP_AFTER_FAILURES:
                    continue
                reason = f"{STOP_AFTER_FAILURES} consecutive failures, the last {reason}"
            if arm not in self.stopped:  # Another worker may have stopped it.
                self.stopped[arm] = reason
                self._progress.drop_arm(arm)
                self._progress.print_line(f"{arm} is stopped: {reason}")

    async def _try_once(self, question: Question, queue: _EndpointQueue) -> RequestResult | None:
        """Send a request and record its cost; return None if the spending cap does not allow it."""
        async with queue.rate_limit:
            pass
        key, arm = question.key, question.arm
        reserved_usd = arm.reserve_usd(question.body)
        if not await self._budget.reserve(reserved_usd):
            return None
        number = self._store.begin_request(key, reserved_usd)
        once = self._store.idempotency_key(key)
        result = await self._sender.send(arm.endpoint, question.body, once)
        if isinstance(result, Reply):
            if result.input_tokens is not None and result.output_tokens is not None:
                usd = arm.price.cost_usd(result.input_tokens, result.output_tokens, seconds=0)
                result = result.model_copy(update={"cost_usd": usd})
            charged_usd = self._store.save_answer(number, key, result)
            self._consecutive_failures[key.arm] = 0
            self._progress.add_answer(key.arm, charged_usd)
        else:
            charged_usd = self._store.close_failed(number, result)
        self._progress.add_cost(charged_usd)
        await self._budget.settle(reserved_usd, charged_usd)
        return result


def _wait_s(state: RetryCallState) -> float:
    """Return the delay that the endpoint requests, or else a random exponential backoff."""
    result = _result_of(state)
    requested_s = result.retry_after_s if isinstance(result, RequestFailure) else None
    return _BACKOFF(state) if requested_s is None else requested_s


def _result_of(state: RetryCallState) -> RequestResult | None:
    result: RequestResult | None = state.outcome.result() if state.outcome else None
    return result


async def ask_all(
    plan: Plan, store: Store, sender: Sender, cap_usd: float | None, remedy: str = ""
) -> tuple[int, str]:
    """Ask all unanswered questions; return the exit status, and advice if questions are left.

    The first Ctrl-C waits for the requests in flight, the second abandons them. `remedy` says what
    else to do than to raise the cap.
    """
    for name in ("httpx", "httpx2", "openai"):
        # These libraries log a line for each request, which would break the progress bar.
        logging.getLogger(name).setLevel(logging.WARNING)
    answered, spending = store.answered(), store.spending()
    spent_usd = spending.answered_usd + spending.lost_usd
    unanswered = plan.count_unanswered(answered)
    total = len(plan.rows) * len(plan.pool.pool) * plan.attempts
    budget = SpendingBudget(cap_usd, spent_usd)
    loop = asyncio.get_running_loop()
    with ProgressBar(unanswered, total - unanswered.total(), spent_usd) as progress:
        run = LabellingRun(plan, store, sender, budget, progress)

        def end_run() -> None:
            loop.remove_signal_handler(signal.SIGINT)
            run.end()
            progress.print_line("Waiting for requests in flight; press Ctrl-C to abandon them.")

        loop.add_signal_handler(signal.SIGINT, end_run)
        try:
            await run.run(answered)
        finally:
            loop.remove_signal_handler(signal.SIGINT)
    if run.is_ending:
        return INTERRUPTED, f"Interrupted; {AGAIN}."
    if budget.refused_usd is not None:
        return CAPPED, (
            f"Stopped below the spending cap of {cap_usd} USD: {budget.spent_usd:.4f} USD are"
            f" spent, and the next request may cost {budget.refused_usd:.4f} USD. Raise the cap"
            f"{remedy}; {AGAIN}."
        )
    if run.stopped:
        return FAILED, f"Stopped: {', '.join(run.stopped)}. Fix the errors above; {AGAIN}."
    if progress.failed:
        return FAILED, f"{progress.failed} questions have no answer; {AGAIN} and retry them."
    return COMPLETE, ""
