"""Routes that plan a request, send it to models of the pool, relay the answer, and record it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import APIRouter
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from router_service.apis.registry import APIS
from router_service.core.errors import SwitchcraftError
from router_service.core.record import CLIENT_LEFT
from router_service.core.resources import StageName, Timer
from router_service.http.deferred import relay_verified
from router_service.http.error_responses import refuse, status_of
from router_service.http.relay import AnswerRelay
from router_service.http.schemas import (
    ANSWER,
    ANSWERS,
    ERRORS,
    ROUTED,
    errors,
    model_request,
    routed_request,
)
from router_service.http.transfer import (
    ClientWatch,
    admit,
    call_of,
    connection_of,
    gateway_of,
    read_body,
    read_deadline,
    reserve,
)
from router_service.requests.call import Call, Ending
from router_service.requests.deciding import plan_request
from router_service.requests.limits import Drain
from router_service.requests.parsing import (
    Endpoint,
    unrouted,
)
from router_service.requests.planning import Plan
from router_service.requests.policy_headers import PolicyHeaders
from router_service.requests.verification import check_limits
from router_service.runtime.engine import Engine
from router_service.runtime.gateway import Gateway

BETA = "beta=true"
"""Query of the Anthropic client's beta requests."""

ENDPOINTS = {
    f"/v1{endpoint.path}": endpoint
    for endpoint in (
        *(Endpoint.of(api) for api in APIS),
        *(Endpoint.compacting(api) for api in APIS if api.compacting_path),
        unrouted("/embeddings"),
        unrouted("/completions"),
    )
}
"""The endpoints that `answer` answers, by path."""


def described_routes() -> APIRouter:
    """Return the routes of the endpoints, for the OpenAPI schema and errors about methods."""
    router = APIRouter(tags=[ANSWERS], responses=ERRORS)
    for path, endpoint in ENDPOINTS.items():
        api = endpoint.api
        described: dict[str, Any] = {
            "openapi_extra": model_request(),
            "responses": ANSWER,
            "summary": _TITLES.get(path),
        }
        if api is not None:
            responses = {**ROUTED, **errors(api.error_body)}
            described = {"openapi_extra": routed_request(api), "responses": responses}
            described |= (
                _COMPACTING
                if endpoint.compacts
                else {"name": api.operation, "summary": api.summary, "description": api.description}
            )
        router.add_api_route(
            path, _answerer(endpoint), methods=["POST"], response_class=Response, **described
        )
    return router


_TITLES = {"/v1/embeddings": "Embeddings", "/v1/completions": "Text completions"}
_COMPACTING = {
    "name": "compact",
    "summary": "Compact a conversation",
    "description": "Summarize a conversation, so that the client can go on from that.",
}


def _answerer(endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
    async def answer_later(request: Request) -> Response:
        """Answer with the model of the pool that the request body names."""
        return RoutedAnswer(endpoint, request)

    return answer_later


class RoutedAnswer(Response):
    """Response that is answered by `answer`, for routes that FastAPI serves."""

    status_code = 200
    background = None

    def __init__(self, endpoint: Endpoint, request: Request) -> None:
        """Store the request; it is answered when this object is called."""
        # Not `super().__init__()`, which would write headers that are not sent.
        self._endpoint = endpoint
        self._request = request

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """Answer the request."""
        request = self._request
        call, gateway = call_of(request), gateway_of(request)
        await answer(call, gateway, self._endpoint, scope, request.receive, send)


async def answer(
    call: Call, gateway: Gateway, endpoint: Endpoint, scope: Scope, receive: Receive, send: Send
) -> None:
    """Plan a request, send it to models of the pool, relay the answer, and record it.

    If the client disconnects, the call to the upstream is cancelled at once. The HTTP status is
    sent only with the first bytes of the answer, so that an earlier failure gets an error status.
    """
    connection = connection_of(scope)
    # Use one engine for the whole request, even if the configuration is reloaded meanwhile.
    try:
        async with gateway.engine as engine:
            with ClientWatch(connection) as watch:
                try:
                    body = await _admit(call, gateway, endpoint, receive)
                    await _plan(call, gateway, engine, endpoint, body)
                except SwitchcraftError as exc:
                    await refuse(gateway, scope, exc)(scope, receive, send)
                    return
                except ClientDisconnect:
                    raise
                except Exception:
                    call.refusal = "internal_error"
                    gateway.recorder.ended(call, 500)
                    raise
                call.query = BETA if scope["query_string"] == BETA.encode() else ""
                relay = AnswerRelay(call, gateway, engine.attempts, send, connection)
                try:
                    if call.plan.verified is None:
                        await relay.run()
                    else:
                        keep_alive_s = engine.settings.router.verification.keep_alive_s
                        await relay_verified(relay, call.limits, keep_alive_s)
                except (Exception, asyncio.CancelledError) as exc:
                    if not watch.has_left:
                        _note_failure(call, gateway.drain, exc)
                    raise
                finally:
                    gateway.recorder.answered(call)
    except ClientDisconnect:
        if not call.is_logged:
            gateway.recorder.ended(call, CLIENT_LEFT)


async def _admit(call: Call, gateway: Gateway, endpoint: Endpoint, receive: Receive) -> bytes:
    """Read and admit a request; return its body.

    Raises SwitchcraftError, and ClientDisconnect if the client leaves.
    """
    call.deadline_s = read_deadline(call)
    call.timer = Timer(time.perf_counter)
    body = await read_body(call, receive, gateway.server)
    call.timer.end(StageName.BODY)
    await admit(gateway, call, endpoint.path, len(body))
    return body


async def _plan(
    call: Call, gateway: Gateway, engine: Engine, endpoint: Endpoint, body: bytes
) -> None:
    """Plan a request within its budget; raises SwitchcraftError."""
    router, started_s = engine.settings.router, time.perf_counter()
    allowance = None if call.admission is None else call.admission.allowance
    headers = PolicyHeaders(call.headers, router.verification, call.key, allowance)
    plan = await plan_request(gateway, engine, endpoint, body, headers=headers, timer=call.timer)
    call.decision_s = time.perf_counter() - started_s
    call.is_late = call.decision_s > router.latency_budget_s
    if plan.verified is not None:
        call.limits = headers.limits
        check_limits(plan, call.limits)
    if call.key.has_budget:
        await _within_budget(gateway, call, plan)
    call.begin(plan, partial(gateway.decisions.run, call.key.name, len(body)))


def _note_failure(call: Call, drain: Drain, exc: BaseException) -> None:
    """Note that the gateway failed to answer, or that its shutdown ended the request."""
    error = exc if isinstance(exc, Exception) else drain.cut_off_error()
    if error is not None and not call.was_cut_off:  # else the answer has its ending
        call.was_cut_off = error is not exc
        call.end(status_of(error), Ending.FAILED)


async def _within_budget(gateway: Gateway, call: Call, plan: Plan) -> None:
    """Reserve the cost of a plan, and change it and the limits to what the budget allows."""
    is_verified = plan.verified is not None
    cost = plan.expected_cost(call.limits.max_candidates if is_verified else 1)
    allowance_usd = await reserve(gateway, call, cost)
    if allowance_usd < cost.usd * (1 - 1e-6):  # by more than it was rounded
        plan.planner.within(plan, allowance_usd)
    if is_verified and allowance_usd < call.limits.max_cost_usd and plan.decision is not None:
        # The cheapest arm may always be asked.
        cheapest_usd = min(plan.costs_usd().values())
        call.limits = replace(call.limits, max_cost_usd=max(allowance_usd, cheapest_usd))
