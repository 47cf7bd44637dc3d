"""Retries and fallbacks: deployments are tried until one answers.

A request is retried on the other deployments of its model, and on the same deployment if that is
safe. Then the next candidate model is tried. A circuit breaker stops requests to deployments that
fail, and a retry budget keeps retries from multiplying the load during an outage. After the first
output of an answer, there are no retries.
"""

from __future__ import annotations

import asyncio
import math
import random
import re
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from functools import partial
from hashlib import sha256

from router_service.apis.api import UpstreamApi
from router_service.core.errors import (
    DeadlineError,
    Failure,
    UpstreamError,
    UpstreamRefusedError,
)
from router_service.requests.call import Call
from router_service.requests.candidates import Attempt, Candidate
from router_service.settings import Deployment, Model, RetrySettings
from router_service.upstream.bodies import (
    asks_for_usage,
    is_repeatable,
    may_be_repeated,
    without_field,
)
from router_service.upstream.breaker import CircuitBreakers
from router_service.upstream.client import (
    UpstreamAnswer,
    UpstreamClient,
)
from router_service.upstream.connection import HttpRequest
from router_service.upstream.parameters import add_parameters
from router_service.upstream.streams import StartedAnswer, read_whole, start_stream
from router_service.upstream.translation import (
    ProofMemory,
    account_of,
    may_refuse_thinking,
)

CLOCK_SLACK_S = 0.005
"""Time that is added to waits, because a sleep may end a little too early."""

OPTION_REFUSAL_TTL_S = 300.0
"""How long a deployment's refusal of `stream_options` or of a beta is remembered. A further refusal
is cheap."""

BETA_HEADER = "anthropic-beta"
"""Names of Anthropic's betas that a client asks for, separated by commas."""

_BETA_REFUSAL = re.compile(rb"invalid beta flag|anthropic[-_]beta", re.IGNORECASE)
"""What errors about a beta say, at Bedrock, which does not name it, and at Anthropic."""

BUDGET_SAVINGS_S = 10.0
"""Seconds for which the retry budget can save up its floor, the retries per second that are always
allowed: 20 retries by default."""

RESERVED_SHARE = 0.25
"""Share of the retry budget that the key with most retries leaves to others."""

MAX_EXPIRING = 1000
"""Most members of an `ExpiringSet`; beyond it, the oldest one is dropped. The limit is needed
because members contain paths, which clients choose."""

_TRANSIENT = {408, 409, 425, 429, 500, 502, 503, 504, 529}
"""Statuses after which the same deployment may succeed. 529 is Anthropic's "overloaded"."""

_NEVER_RETRIED = {Failure.COOLING_DOWN, Failure.UNFIT, Failure.TOO_LONG}

_FREE = {
    Failure.COOLING_DOWN,
    Failure.BUSY,
    Failure.UNFIT,
    Failure.TOO_LONG,
    Failure.QUOTA,
    Failure.REFUSED,
    Failure.UNUSABLE,
}
"""Failures after which a fallback costs no retry budget, because it adds nothing to the load during
an outage. The request was not sent, or was refused unread, or its upstream works and answered."""


def _draw(deployments: Sequence[Deployment], conversation: str | None) -> Deployment:
    """Draw a deployment by weight; always the same one for a conversation.

    A conversation's draws are weighted rendezvous hashing: if its deployment is removed, only its
    own conversations move (Schindelhauer and Schomaker, "Weighted distributed hash tables", 2005).
    """
    weighted = [deployment for deployment in deployments if deployment.weight]
    if len(weighted) == 1:
        return weighted[0]
    drawn = weighted or deployments
    if conversation is None:
        weights = [deployment.weight or 1.0 for deployment in drawn]
        return random.choices(drawn, weights)[0]  # noqa: S311 - not a secret

    def score(deployment: Deployment) -> float:
        digest = sha256(f"{conversation}\0{deployment.id}".encode()).digest()
        uniform = (int.from_bytes(digest[:8]) + 1) / (2**64 + 1)
        return (deployment.weight or 1.0) / -math.log(uniform)

    return max(drawn, key=score)


class RetryingClient:
    """Client that retries requests and falls back to other models; shared by all requests."""

    def __init__(
        self,
        client: UpstreamClient,
        breakers: CircuitBreakers,
        budget: RetryBudget,
        settings: RetrySettings,
    ) -> None:
        """Send requests through `client`. The breakers are shared with other engines."""
        self._client = client
        self._breakers = breakers
        self._budget = budget
        self._settings = settings
        self._proofs = ProofMemory()
        self._option_refusals = ExpiringSet(OPTION_REFUSAL_TTL_S, time.monotonic)
        """Deployment, path and client of requests whose `stream_options` were refused, and
        deployment, beta and client of refused betas."""

    async def start(
        self,
        call: Call,
        candidate: Candidate,
        models: Sequence[Model],
        max_models: float = math.inf,
    ) -> StartedAnswer:
        """Return the first answer of these models that starts well, as the candidate's answer.

        Each attempt is appended to the candidate's. At most `max_models` models get the request.
        The answer is a context; its connection is released when the block is left.

        If no deployment answers, raise the UpstreamError of the first model that was tried. After a
        model refused the request as too long, only models with larger context windows are tried,
        and those whose window is unknown. An attempt that is cancelled before it is sent is not
        appended.
        """
        self._budget.earn()
        asked = 0
        first: UpstreamError | None = None
        last: UpstreamError | None = None
        exceeded_tokens = 0
        try:
            for model in models:
                window_tokens = model.capabilities.context_window_tokens
                if window_tokens is not None and window_tokens <= exceeded_tokens:
                    continue
                if last is not None:
                    if call.latest_end_s(model) <= time.monotonic():
                        continue
                    if asked >= max_models or not self.may_fall_back(last, call):
                        break
                earlier = len(candidate.attempts)
                try:
                    return await self._try_model(model, call, candidate)
                except UpstreamError as exc:
                    last = exc
                    asked += any(attempt.was_sent for attempt in candidate.attempts[earlier:])
                    if exc.failure is Failure.TOO_LONG:
                        exceeded_tokens = max(exceeded_tokens, window_tokens or 0)
                    # The chosen model's failure is reported, unless it was not tried at all.
                    if first is None or first.failure is Failure.COOLING_DOWN:
                        first = exc
            assert first is not None  # noqa: S101 - for types; there is at least one model
            raise first
        finally:
            # A failure refers to this frame by its traceback. If the frame referred to the failure
            # too, what was read of an answer would stay until the next full garbage collection.
            first = last = None

    def may_fall_back(self, failure: UpstreamError, call: Call) -> bool:
        """Return whether another model may be tried after a failure; takes it from the budget."""
        is_final = isinstance(failure, DeadlineError) or not _is_safe_to_repeat(failure, call)
        return not is_final and (failure.failure in _FREE or self._budget.spend(call.key.name))

    def record_break(self, answer: StartedAnswer, exc: UpstreamError, call: Call) -> None:
        """Count the failure of an answer that had started well."""
        self._count_failure(answer.deployment, exc, call.key.name, had_begun=True)

    async def _try_model(self, model: Model, call: Call, candidate: Candidate) -> StartedAnswer:
        """Try a model's deployments until one answers or no further retry is allowed."""
        translation = call.request.translation
        if translation is not None:
            able = translation.able(model)
            if len(able) < len(model.deployments):
                model = model.model_copy(update={"deployments": tuple(able)})
        failed_ids: set[str] = set()
        failures = 0
        unsafe: UpstreamError | None = None  # the first failure after which nothing may be repeated
        try:
            while True:
                try:
                    deployment = self._choose_deployment(model, failed_ids, call)
                    attempt = Attempt(model.name, deployment.id)
                    try:
                        answered = await self._send(model, deployment, call, candidate, attempt)
                    except UpstreamError as exc:
                        self._count_failure(deployment, exc, call.key.name)
                        failed_ids.add(deployment.id)
                        attempt.failure = exc.failure
                        attempt.status = exc.error_status or attempt.status
                        candidate.attempts.append(attempt)
                        raise
                    except (
                        BaseException
                    ):  # the client left, or a bug: neither is about the upstream
                        self._breakers.release(deployment.id)
                        if attempt.was_sent:
                            attempt.is_cancelled = True
                            candidate.attempts.append(attempt)
                        raise
                except UpstreamError as exc:
                    failures += 1
                    if not _is_safe_to_repeat(exc, call):
                        unsafe = unsafe or exc
                    wait_s = self._retry_wait_s(exc, model, call, failed_ids, failures, unsafe)
                    if wait_s is None:
                        raise unsafe or exc from exc.__cause__
                else:
                    self._breakers.record_success(deployment.id, call.key.name)
                    candidate.attempts.append(attempt)
                    return answered
                await asyncio.sleep(wait_s)
        finally:
            unsafe = None  # as in `start`

    def _choose_deployment(self, model: Model, failed_ids: set[str], call: Call) -> Deployment:
        """Draw a deployment by weight, if possible one that has not failed this request.

        All requests of a conversation draw the same one.
        """
        now_s = time.monotonic()
        in_time = [d for d in model.deployments if call.end_s(d) > now_s]
        if not in_time:
            if call.deadline_s <= now_s:
                raise DeadlineError(model.name)
            problem = "was not asked any more, because the time for the whole request is over"
            raise UpstreamError(model.name, problem, Failure.TIMEOUT)
        for has_failed in (False, True):
            left = [d for d in in_time if (d.id in failed_ids) == has_failed]
            while left:
                chosen = left[0] if len(left) == 1 else _draw(left, call.conversation)
                if self._breakers.admit(chosen.id, call.key.name):
                    return chosen
                left.remove(chosen)
        problem = "is not tried, because its circuit is open after recent failures"
        wait_s = min([self._breakers.wait_s(d.id, call.key.name) for d in in_time])
        raise UpstreamError(model.name, problem, Failure.COOLING_DOWN, retry_after_s=wait_s)

    def _waits_s(self, model: Model, call: Call) -> dict[str, float]:
        """Return the breakers' waits of the deployments for which the request has time left."""
        now_s = time.monotonic()
        return {
            deployment.id: self._breakers.wait_s(deployment.id, call.key.name)
            for deployment in model.deployments
            if call.end_s(deployment) > now_s
        }

    async def _send(
        self,
        model: Model,
        deployment: Deployment,
        call: Call,
        candidate: Candidate,
        attempt: Attempt,
    ) -> StartedAnswer:
        """Send a request; if the upstream seems to refuse a part of it, repeat it without it.

        These are `stream_options`, by which many clients ask for usage, Anthropic's betas, and
        reasoning that another provider signed. The answer matters more. An error that names one of
        them may have another cause: for example, it may quote the request. So a refusal is
        remembered only if the request succeeds without it: of `stream_options` and betas for the
        same client, of reasoning for its proofs.
        """
        request, key = call.request, call.key.name
        translation = request.translation
        target = None if translation is None else translation.target_of(deployment)
        is_native = translation is None or target is translation.client
        path = request.endpoint.path if is_native or target is None else target.path
        refusal = (deployment.id, path, key)
        headers = self._headers_for(deployment, call, candidate)

        async def write(*, has_thinking: bool = True) -> bytes:
            if translation is None or target is None:
                body = request.body.with_model(deployment.upstream_model)
            else:
                body = await translation.body_for(
                    model, deployment, target, self._proofs, has_thinking=has_thinking
                )
            if deployment.parameters:
                body = add_parameters(body, deployment.parameters, path, deployment.upstream_model)
            if refusal in self._option_refusals and asks_for_usage(body):
                body = without_field("stream_options", body)
            return body

        body = await write()
        remember: Callable[[], None] | None = None
        while True:
            outgoing = HttpRequest(
                model.name,
                path,
                deployment.url(path, call.query if is_native else ""),
                body,
                deployment.timeouts,
                headers,
                key,
                needs_new_connection=not may_be_repeated(path),
                on_sent=attempt.mark_sent,
            )
            answer = await self._client.send(
                deployment,
                outgoing,
                deadline_s=call.deadline_s,
                started_s=call.asked_s,
                trace=candidate.trace,
                reserve_memory=call.hold_memory,
            )
            attempt.status = answer.status
            started = StartedAnswer(model, deployment, answer.status, answer.headers, b"", answer)
            started.is_translated = not is_native
            other, other_headers = body, headers
            try:
                await self._read(answer, started, call, target)
                if remember is None and started.status in {400, 422}:
                    if b"stream_options" in started.body and asks_for_usage(body):
                        other = without_field("stream_options", body)
                        remember = partial(self._remember_refusals, [refusal])
                    elif refused := _refused_betas(started.body, headers):
                        other_headers = _without_betas(headers, refused)
                        found = [(deployment.id, beta, key) for beta in refused]
                        remember = partial(self._remember_refusals, found)
                    elif translation and target and may_refuse_thinking(started.body):
                        other = await write(has_thinking=False)
                        remember = partial(
                            translation.refuse_proofs, deployment, target, self._proofs
                        )
            except BaseException as exc:
                started.close(exc)
                raise
            if other == body and other_headers is headers:
                if remember is not None and started.status < 400:
                    remember()
                return started
            started.close()
            body, headers = other, other_headers

    def _headers_for(
        self, deployment: Deployment, call: Call, candidate: Candidate
    ) -> Mapping[str, str]:
        """Return the client's headers that a deployment may get for a candidate."""
        headers, key = call.headers, call.key.name
        if candidate.arm is not None and "idempotency-key" in headers:
            # Different models must not get the same idempotency key, because a provider refuses a
            # key that it has seen with another body.
            headers = {name: headers[name] for name in headers if name != "idempotency-key"}
        if BETA_HEADER not in headers:
            return headers
        refused = [
            beta
            for beta in _betas_of(headers)
            if (deployment.id, beta, key) in self._option_refusals
        ]
        return _without_betas(headers, refused)

    def _remember_refusals(self, refusals: Iterable[Hashable]) -> None:
        for refusal in refusals:
            self._option_refusals.add(refusal)

    async def _read(
        self,
        answer: UpstreamAnswer,
        started: StartedAnswer,
        call: Call,
        target: UpstreamApi | None,
    ) -> None:
        """Read the start of an answer, translate it, and remember who made its proofs."""
        expects_json = call.request.endpoint.is_json
        translation, translator, on_proof = call.request.translation, None, None
        if translation and target and started.is_translated and answer.status < 400:
            translator = translation.answer_translator(started.deployment, target)
        if target is not None and target.has_proofs:
            account = account_of(started.deployment, target)
            on_proof = partial(self._proofs.remember, account=account)
        if answer.is_stream:
            await start_stream(
                answer,
                started,
                expects_json=expects_json,
                api=target,
                translator=translator,
                on_proof=on_proof,
            )
            return
        await read_whole(
            answer,
            started,
            expects_json=expects_json,
            api=target,
            translator=translator,
        )
        if target is not None and on_proof is not None and isinstance(started.value, dict):
            for proof in target.find_proofs(started.value):
                on_proof(proof)

    def _count_failure(
        self,
        deployment: Deployment,
        exc: UpstreamError,
        key: str | None,
        *,
        had_begun: bool = False,
    ) -> None:
        if exc.failure is Failure.BUSY or exc.may_be_client_fault:
            self._breakers.release(deployment.id)
        else:
            self._breakers.record_failure(
                deployment.id, exc, address=deployment.address, had_begun=had_begun, client=key
            )

    def _retry_wait_s(
        self,
        failure: UpstreamError,
        model: Model,
        call: Call,
        failed_ids: set[str],
        failures: int,
        unsafe: UpstreamError | None,
    ) -> float | None:
        """Return the wait before this model is retried, or None if it is not retried.

        Another deployment is tried at once. The same deployment is retried after the time that it
        asks for, or else after a random time whose upper limit doubles with each failure
        ("Exponential Backoff And Jitter", AWS). This method takes the retry from the budget.
        """
        settings, key = self._settings, call.key.name
        waits_s = self._waits_s(model, call)
        has_another = any(id_ not in failed_ids and wait_s == 0 for id_, wait_s in waits_s.items())
        wait_s = 0.0
        if not has_another:
            longest_s = min(settings.backoff_s * 2.0 ** (failures - 1), settings.max_backoff_s)
            asked_s = failure.retry_after_s
            backoff_s = random.uniform(0, longest_s) if asked_s is None else asked_s  # noqa: S311
            wait_s = max(backoff_s, min(waits_s.values(), default=0.0)) + CLOCK_SLACK_S
        if failures > settings.max_retries or not waits_s:
            return None
        is_spent = failure.failure is Failure.QUOTA and not has_another
        if is_spent or isinstance(failure, DeadlineError) or failure.failure in _NEVER_RETRIED:
            return None
        now_s = time.monotonic()
        if wait_s > settings.max_backoff_s or now_s + wait_s > call.latest_end_s(model):
            return None
        if unsafe is not None:
            # Only the deployment that got the request can recognize its idempotency key.
            has_key = bool(call.headers.get("idempotency-key"))
            if not (settings.idempotency_keys and len(model.deployments) == 1 and has_key):
                return None
        if has_another:
            is_free = failure.failure in {Failure.REFUSED, Failure.QUOTA}
            return wait_s if is_free or self._budget.spend(key) else None
        # Do not retry the same deployment if it hung, because it would hang again; if it was busy,
        # because it was waited for already; or if it refused the request, because it would again.
        if isinstance(failure, UpstreamRefusedError):
            may_recover = failure.status in _TRANSIENT
        else:
            lasting = {Failure.TIMEOUT, Failure.BUSY, Failure.REFUSED}
            may_recover = failure.failure not in lasting
        return wait_s if may_recover and self._budget.spend(key) else None


def _betas_of(headers: Mapping[str, str]) -> Sequence[str]:
    names = (name.strip() for name in headers.get(BETA_HEADER, "").split(","))
    return [name for name in names if name]


def _refused_betas(error: bytes, headers: Mapping[str, str]) -> Sequence[str]:
    """Return the betas that an error is about: those that it names, or else all."""
    betas = _betas_of(headers) if _BETA_REFUSAL.search(error) else ()
    return [beta for beta in betas if beta.encode() in error] or betas


def _without_betas(headers: Mapping[str, str], refused: Collection[str]) -> Mapping[str, str]:
    kept = [beta for beta in _betas_of(headers) if beta not in refused]
    others = {name: value for name, value in headers.items() if name != BETA_HEADER}
    return {**others, BETA_HEADER: ",".join(kept)} if kept else others


def _is_safe_to_repeat(failure: UpstreamError, call: Call) -> bool:
    """Return whether a request can be sent again without the risk of a second effect.

    That is so if the upstream did nothing, because it was not reached or refused the request, or if
    the request has no lasting effect. A status of 500 or higher does not show what the upstream did
    before. Neither does a broken connection: the upstream may only have closed an idle connection.
    """
    did_nothing = failure.failure in {Failure.UNREACHABLE, Failure.BUSY, Failure.COOLING_DOWN}
    is_refused = isinstance(failure, UpstreamRefusedError) and failure.status < 500
    return did_nothing or is_refused or is_repeatable(call.request.endpoint.path, call.request.body)


class RetryBudget:
    """Token bucket for retries: each request adds `share` retries, each second `floor_per_s`.

    Over any T seconds, `retries <= share * requests + floor_per_s * (T + BUDGET_SAVINGS_S)`. So by
    default an outage multiplies the load by at most 1.2, plus 2 retries a second and 20 saved ones.
    The bucket never holds more than these 20, however many requests were sent before. With a floor
    below 0.1 the bucket still holds one retry, because otherwise none could ever be spent. (Google
    SRE Book, chapter 22, "Retries".)

    A quarter of the bucket is kept for others than the API key that has retried most recently, so
    that the failures of one key do not use up the retries of all.
    """

    def __init__(self, share: float, floor_per_s: float, clock: Callable[[], float]) -> None:
        """Start with the retries that the floor adds in `BUDGET_SAVINGS_S` seconds."""
        self._share = share
        self._floor_per_s = floor_per_s
        self._clock = clock
        self._seen_s = clock()
        self._balance = BUDGET_SAVINGS_S * floor_per_s
        self._max_balance = max(1.0, self._balance)
        self._recent: dict[str, float] = {}
        """Retries of each key, of which a share is forgotten as time passes."""

    def earn(self) -> None:
        """Add the share of a retry that each request earns."""
        self._balance = min(self._max_balance, self._balance + self._share)

    def spend(self, caller: str | None = None) -> bool:
        """Take one retry from the budget, or return False if none is left for this API key."""
        now_s = self._clock()
        passed_s = now_s - self._seen_s
        self._seen_s = now_s
        self._balance = min(self._max_balance, self._balance + passed_s * self._floor_per_s)
        kept = math.exp(-passed_s / BUDGET_SAVINGS_S)
        self._recent = {key: kept * n for key, n in self._recent.items() if kept * n > 0.01}
        if self._balance < 1:
            return False
        if caller is not None:
            is_busiest = caller == max(self._recent, key=self._recent.__getitem__, default=None)
            if is_busiest and self._balance <= RESERVED_SHARE * self._max_balance:
                return False
            self._recent[caller] = self._recent.get(caller, 0.0) + 1
        self._balance -= 1
        return True


class ExpiringSet:
    """Set whose members expire `ttl_s` seconds after they were last added."""

    def __init__(self, ttl_s: float, clock: Callable[[], float]) -> None:
        self._ttl_s = ttl_s
        self._clock = clock
        self._until_s: dict[Hashable, float] = {}

    def __contains__(self, member: Hashable) -> bool:
        """Return whether a member was added and has not expired."""
        return bool(self._until_s) and self._until_s.get(member, 0.0) > self._clock()

    def add(self, member: Hashable) -> None:
        """Add a member, or extend its time."""
        self._until_s.pop(member, None)
        self._until_s[member] = self._clock() + self._ttl_s
        if len(self._until_s) > MAX_EXPIRING:
            del self._until_s[next(iter(self._until_s))]
