"""Asks one deployment after another until one answers; after its first output there is no other.

Within a model its deployments are tried, the failed one again where that is safe; then comes the
next candidate. A circuit breaker keeps requests from deployments that fail, and a budget keeps
retries from multiplying an outage.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from router_service.core.errors import (
    DeadlineError,
    Failure,
    UpstreamError,
    UpstreamRefusedError,
)
from router_service.settings import Deployment, Model, RetrySettings
from router_service.tracing import UNTRACED, Trace
from router_service.upstream.body_template import (
    REPEATABLE_PATHS,
    BodyTemplate,
    asks_for_usage,
    is_repeatable,
    without_stream_options,
)
from router_service.upstream.breaker import CircuitBreakers
from router_service.upstream.client import OutgoingRequest, ReserveMemory, UpstreamClient, unlimited
from router_service.upstream.first_event import (
    StartedAnswer,
    read_whole,
    refuses_stream_options,
    start_stream,
)

CLOCK_SLACK_S = 0.005
"""A sleep may end a little before the moment that it was to reach."""

REFUSAL_KEPT_S = 300.0
"""How long it is known that a deployment refuses `stream_options`; one more refusal is cheap."""

_TRANSIENT = {408, 409, 425, 429, 500, 502, 503, 504, 529}
"""Statuses after which the same deployment may well answer; 529 is Anthropic's "overloaded"."""


@dataclass(frozen=True, slots=True)
class UpstreamRequest:
    """What is to be asked, and of whom."""

    candidates: Sequence[Model]
    path: str
    body: BodyTemplate
    client_headers: Mapping[str, str]
    deadline_s: float
    """When the request's own time is over, by the event loop's clock."""
    expects_json: bool = True
    """Whether a good answer that is no JSON object is a failure."""
    client: str | None = None
    """Name of the key that it came with: what its requests teach about deployments holds for this
    client first of all."""
    trace: Trace = field(default=UNTRACED, repr=False)
    """Of the request that this is done for."""
    hold: ReserveMemory = unlimited


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try of one deployment; `failure` is None where it answered."""

    model: str
    deployment_id: str
    failure: Failure | None = None


Held = tuple[StartedAnswer, AsyncExitStack]
"""A good start, and what lets go of its connection."""


@dataclass(slots=True)
class _Tries:
    """The tries of one request at one model."""

    model: Model
    client: str | None
    failed_ids: set[str] = field(default_factory=set)
    failures: int = 0
    unsafe: UpstreamError | None = None
    """The first failure after which no other deployment or model may be asked."""


class RetryingClient:
    """Answers requests from deployments; shared by all requests of an engine."""

    def __init__(
        self,
        client: UpstreamClient,
        breakers: CircuitBreakers,
        budget: RetryBudget,
        settings: RetrySettings,
    ) -> None:
        """Ask through a client; the breakers are shared with other engines."""
        self._client = client
        self._breakers = breakers
        self._budget = budget
        self._settings = settings
        self._refuses_options = ExpiringSet(REFUSAL_KEPT_S, time.monotonic)
        """Deployment, path and client of requests whose `stream_options` were refused."""

    @asynccontextmanager
    async def open(
        self, order: UpstreamRequest, log: list[Attempt]
    ) -> AsyncIterator[StartedAnswer]:
        """Yield the first good start of an answer; each try is put into `log` as it ends.

        Leaving the block closes the connection. Raises UpstreamError where none answered: that of
        the first model that was asked.
        """
        self._budget.earn()
        opened, connection = await self._first(order, log)
        async with connection:
            yield opened

    async def _first(self, order: UpstreamRequest, log: list[Attempt]) -> Held:
        told: UpstreamError | None = None
        last: UpstreamError | None = None
        for model in order.candidates:
            if last is not None and not self._may_fall_back(last, order):
                break
            try:
                return await self._ask_model(model, order, log)
            except UpstreamError as exc:
                last = exc
                # The chosen model's failure counts; one that was not asked has least to tell.
                if told is None or told.failure is Failure.COOLING_DOWN:
                    told = exc
        if told is None:
            raise ValueError("an order without candidates")
        raise told

    def _may_fall_back(self, failure: UpstreamError, order: UpstreamRequest) -> bool:
        if isinstance(failure, DeadlineError) or not _is_safe_to_repeat(failure, order):
            return False
        return failure.failure in _FREE or self._budget.spend()

    async def _ask_model(self, model: Model, order: UpstreamRequest, log: list[Attempt]) -> Held:
        tries = _Tries(model, order.client)
        while True:
            try:
                return await self._ask_one(tries, order, log)
            except UpstreamError as exc:
                tries.failures += 1
                if not _is_safe_to_repeat(exc, order):
                    tries.unsafe = tries.unsafe or exc
                wait_s = self._wait_s(exc, tries)
                if self._is_over(exc, wait_s, tries, order):
                    raise tries.unsafe or exc from exc.__cause__
            await asyncio.sleep(wait_s)

    async def _ask_one(self, tries: _Tries, order: UpstreamRequest, log: list[Attempt]) -> Held:
        deployment = self._choose(tries)
        try:
            held = await self._start(tries.model, deployment, order)
        except UpstreamError as exc:
            self._count_failure(deployment, exc, order.client)
            tries.failed_ids.add(deployment.id)
            log.append(Attempt(tries.model.name, deployment.id, exc.failure))
            raise
        except BaseException:  # the client left, or a fault of ours: nothing said of the upstream
            self._breakers.left(deployment.id)
            raise
        self._breakers.succeeded(deployment.id, order.client)
        log.append(Attempt(tries.model.name, deployment.id))
        return held

    def _choose(self, tries: _Tries) -> Deployment:
        """Draw a deployment by weight: one that has not failed this request, where there is one."""
        model, client = tries.model, tries.client
        open_for = [d for d in model.deployments if self._breakers.wait_s(d.id, client) == 0]
        fresh = [d for d in open_for if d.id not in tries.failed_ids]
        left = fresh or open_for
        while left:
            chosen = _draw(left)
            if self._breakers.admit(chosen.id, client):
                return chosen
            left.remove(chosen)
        wait_s = min(self._breakers.wait_s(d.id, client) for d in model.deployments)
        problem = "is left alone for a while, after it failed"
        raise UpstreamError(model.name, problem, Failure.COOLING_DOWN, retry_after_s=wait_s)

    async def _start(self, model: Model, deployment: Deployment, order: UpstreamRequest) -> Held:
        body = order.body.with_model(deployment.upstream_model)
        lesson = (deployment.id, order.path, order.client)
        if lesson in self._refuses_options and asks_for_usage(body):
            body = without_stream_options(body)
        opened, connection = await self._send(model, deployment, order, body)
        if not (refuses_stream_options(opened) and asks_for_usage(body)):
            return opened, connection
        # Clients ask for their usage as a matter of course; the answer matters more. The refusal
        # may still be due to something else in this request, or to its text in the error message.
        # So what is learned must be confirmed, and is kept from other clients.
        await connection.aclose()
        opened, connection = await self._send(
            model, deployment, order, without_stream_options(body)
        )
        if opened.status < 400:
            self._refuses_options.add(lesson)
        return opened, connection

    async def _send(
        self, model: Model, deployment: Deployment, order: UpstreamRequest, body: bytes
    ) -> Held:
        message = OutgoingRequest(
            model.name,
            order.path,
            body,
            order.client_headers,
            order.deadline_s,
            needs_new_connection=order.path not in REPEATABLE_PATHS,
            trace=order.trace,
            hold=order.hold,
        )
        async with AsyncExitStack() as connection:
            answer = await connection.enter_async_context(self._client.send(deployment, message))
            opened = StartedAnswer(model, deployment, answer.status, answer.headers, b"")
            if answer.is_stream:
                await start_stream(answer, opened, expects_json=order.expects_json)
            else:
                await read_whole(answer, opened, expects_json=order.expects_json)
            return opened, connection.pop_all()

    def broke(self, opened: StartedAnswer, exc: UpstreamError, order: UpstreamRequest) -> None:
        """Count an answer that failed after its start was good."""
        self._count_failure(opened.deployment, exc, order.client, had_begun=True)

    def _count_failure(
        self,
        deployment: Deployment,
        exc: UpstreamError,
        client: str | None,
        *,
        had_begun: bool = False,
    ) -> None:
        if exc.failure is Failure.BUSY or exc.may_be_clients:
            self._breakers.left(deployment.id)
        else:
            self._breakers.failed(
                deployment.id, exc.retry_after_s, had_begun=had_begun, client=client
            )

    def _is_over(
        self, failure: UpstreamError, wait_s: float, tries: _Tries, order: UpstreamRequest
    ) -> bool:
        """Whether this model is not asked again; a further try is taken from the budget here."""
        if tries.failures > self._settings.max_retries:
            return True
        if isinstance(failure, DeadlineError) or failure.failure in _NO_RETRY:
            return True
        now_s = asyncio.get_running_loop().time()
        if wait_s > self._settings.max_backoff_s or now_s + wait_s > order.deadline_s:
            return True
        if tries.unsafe is not None and not self._is_keyed(tries.model, order):
            return True
        if self._has_fresh(tries):
            return failure.failure is not Failure.REFUSED and not self._budget.spend()
        return not (_may_recover(failure) and self._budget.spend())

    def _is_keyed(self, model: Model, order: UpstreamRequest) -> bool:
        """Whether the only deployment that can be asked again knows a request by its key."""
        is_honoured = self._settings.idempotency_keys and len(model.deployments) == 1
        return is_honoured and bool(order.client_headers.get("idempotency-key"))

    def _wait_s(self, failure: UpstreamError, tries: _Tries) -> float:
        """Wait before the same deployment is asked again: as long as it says, else at random."""
        if self._has_fresh(tries):
            return 0.0
        cooling_s = min(self._breakers.wait_s(d.id, tries.client) for d in tries.model.deployments)
        asked_s = failure.retry_after_s
        return (
            max(self._backoff_s(tries) if asked_s is None else asked_s, cooling_s) + CLOCK_SLACK_S
        )

    def _backoff_s(self, tries: _Tries) -> float:
        """Draw up to twice as long after each failure ("Exponential Backoff And Jitter", AWS)."""
        settings = self._settings
        longest_s = min(settings.backoff_s * 2.0 ** (tries.failures - 1), settings.max_backoff_s)
        return random.uniform(0, longest_s)  # noqa: S311 - nobody gains by guessing it

    def _has_fresh(self, tries: _Tries) -> bool:
        return any(
            d.id not in tries.failed_ids and self._breakers.wait_s(d.id, tries.client) == 0
            for d in tries.model.deployments
        )


_NO_RETRY = {Failure.COOLING_DOWN, Failure.UNFIT}

_FREE = {Failure.COOLING_DOWN, Failure.BUSY, Failure.UNFIT, Failure.REFUSED}
"""What was not sent, or was refused unread, adds nothing to an outage's load."""


def _draw(deployments: Sequence[Deployment]) -> Deployment:
    if len(deployments) == 1:
        return deployments[0]
    weights = [deployment.weight for deployment in deployments]
    return random.choices(deployments, weights if any(weights) else None)[0]  # noqa: S311


def _is_safe_to_repeat(failure: UpstreamError, order: UpstreamRequest) -> bool:
    """Whether another try cannot do twice what a request asks for.

    Either the upstream did nothing, because it was not reached or refused the request, or the
    request has no lasting effect. An error from 500 on does not show what was done before it, nor
    does a connection that broke: the upstream may have closed one that was kept idle just then.
    """
    did_nothing = failure.failure in {Failure.UNREACHABLE, Failure.BUSY, Failure.COOLING_DOWN}
    is_refused = isinstance(failure, UpstreamRefusedError) and failure.status < 500
    return did_nothing or is_refused or is_repeatable(order.path, order.body)


def _may_recover(failure: UpstreamError) -> bool:
    """Whether the same deployment may do better at once, or after a moment.

    One that hangs would hang again, and a busy one was waited for already. One that found something
    wrong with the request would find it again.
    """
    if isinstance(failure, UpstreamRefusedError):
        return failure.status in _TRANSIENT
    return failure.failure not in {Failure.TIMEOUT, Failure.BUSY, Failure.REFUSED}


SAVED_S = 10.0
"""Seconds of the floor that can be saved up: 20 retries by default."""


class RetryBudget:
    """Token bucket for retries: each request adds a share of a retry, each second adds the floor.

    Over any T seconds, `retries <= share * requests + floor_per_s * (T + SAVED_S)`. By default an
    outage therefore multiplies the load by 1.2 at most, plus 2 retries a second and 20 saved ones.
    Requests of the past cannot be saved up beyond the same 20. With a floor under 0.1 the bucket
    holds one retry, because it could never be spent otherwise. (Google SRE Book, chapter 22,
    "Retries".)
    """

    def __init__(self, share: float, floor_per_s: float, clock: Callable[[], float]) -> None:
        """Start with what `SAVED_S` seconds of the floor add up to."""
        self._share = share
        self._floor_per_s = floor_per_s
        self._clock = clock
        self._seen_s = clock()
        self._balance = SAVED_S * floor_per_s
        self._max_balance = max(1.0, self._balance)

    def earn(self) -> None:
        """Count a request."""
        self._balance = min(self._max_balance, self._balance + self._share)

    def spend(self) -> bool:
        """Take one retry from the budget; return False if the budget is empty."""
        now_s = self._clock()
        earned = (now_s - self._seen_s) * self._floor_per_s
        self._seen_s = now_s
        self._balance = min(self._max_balance, self._balance + earned)
        if self._balance < 1:
            return False
        self._balance -= 1
        return True


MAX_LEARNED = 1000
"""Clients choose paths; what was learned first is forgotten first."""


class ExpiringSet:
    """Facts that are forgotten after some seconds."""

    def __init__(self, kept_s: float, clock: Callable[[], float]) -> None:
        """Know nothing yet; `clock` is in seconds."""
        self._kept_s = kept_s
        self._clock = clock
        self._until_s: dict[Hashable, float] = {}

    def __contains__(self, fact: Hashable) -> bool:
        """Tell whether a fact is known now."""
        return bool(self._until_s) and self._until_s.get(fact, 0.0) > self._clock()

    def add(self, fact: Hashable) -> None:
        """Learn a fact, or learn it anew."""
        self._until_s.pop(fact, None)
        self._until_s[fact] = self._clock() + self._kept_s
        if len(self._until_s) > MAX_LEARNED:
            del self._until_s[next(iter(self._until_s))]
