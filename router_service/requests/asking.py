"""Ask one model a request in the background, whose answer no client gets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from router_service.access.key import NO_KEY, Key
from router_service.apis.registry import parse_answer
from router_service.core.errors import Failure, UpstreamError, UpstreamRefusedError
from router_service.requests.call import Call
from router_service.requests.candidates import Candidate
from router_service.requests.parsing import ParsedRequest
from router_service.requests.planning import Plan, Planner
from router_service.runtime.engine import Engine
from router_service.settings import Model
from router_service.upstream.breaker import CircuitBreakers
from router_service.upstream.retries import RetryBudget, RetryingClient
from router_service.upstream.streams import StartedAnswer

_OF_THE_ANSWER = "idempotency-key"
"""A header that belongs to the delivered answer: a provider refuses it with another body."""


def background_client(engine: Engine) -> RetryingClient:
    """Return a client that shares connections with the engine's, and nothing else.

    Its failures open no circuit for clients, and its retries spend nothing of their budget.
    """
    upstreams, clock = engine.settings.upstreams, time.monotonic
    return RetryingClient(
        engine.client,
        CircuitBreakers(upstreams.breaker, clock, lambda *_: None),
        RetryBudget(upstreams.retries.budget_share, 0.0, clock),
        upstreams.retries,
    )


async def ask_model(
    upstreams: RetryingClient,
    planner: Planner,
    request: ParsedRequest,
    model: Model,
    *,
    key: Key = NO_KEY,
    headers: Mapping[str, str] | None = None,
) -> Candidate:
    """Ask a model, and return its answer with its usage, cost and seconds, or with its error.

    `request` must be new: it keeps the body in the API of each deployment. `headers` are those of
    the client.
    """
    call = Call("", "", time.perf_counter(), path=request.endpoint.path, key=key)
    call.headers = {name: text for name, text in (headers or {}).items() if name != _OF_THE_ANSWER}
    call.begin(Plan(request, planner, models=(model,)), asyncio.to_thread)
    candidate = call.accepted
    try:
        opened = await upstreams.start(call, candidate, (model,))
        candidate.begin(opened)
        with opened:
            await _read(candidate, opened)
            candidate.fail_if_unusable(request.terms)
            candidate.is_complete = True
    except UpstreamError as exc:
        candidate.error = exc
    finally:
        call.settle(candidate)
        candidate.opened = None
    return candidate


async def _read(candidate: Candidate, opened: StartedAnswer) -> None:
    """Read an answer to its end; raises UpstreamError for an error, and for too long an answer."""
    name, reader = opened.model.name, opened.reader
    if opened.status >= 400:
        raise UpstreamRefusedError(
            name,
            opened.status,
            headers=opened.headers,
            body=opened.body,
            failure=Failure.REFUSED,
        )
    if opened.rest is not None or opened.is_skimmed:
        raise UpstreamError(name, "answered with more than can be compared", Failure.UNFIT)
    if reader is None:
        candidate.answer = parse_answer(opened.value)
        return
    async for _ in reader.events:
        pass
    if reader.error is not None:
        raise reader.error
    candidate.answer = reader.accumulator.answer()
