"""Routes that plan a request, send it to models of the pool, relay the answer, and record it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

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
    upstream_path,
)
from router_service.requests.call import Call, Ending
from router_service.requests.deciding import plan_request
from router_service.requests.limits import Drain
from router_service.requests.parsing import (
    Endpoint,
    read_session_header,
    unrouted,
)
from router_service.requests.planning import Plan
from router_service.requests.policy_headers import PolicyHeaders
from router_service.requests.verification import check_limits
from router_service.runtime.engine import Engine
from router_service.runtime.gateway import Gateway

BETA = "beta=true"
"""Query of the Anthropic client's beta requests."""

routes = APIRouter(tags=[ANSWERS], responses=ERRORS)


def routes_of_apis() -> APIRouter:
    """Return a route for each API of the registry."""
    router = APIRouter(tags=[ANSWERS], responses=ERRORS)
    for api in APIS:
        if api.compacting_path:
            router.add_api_route(
                f"/v1{api.compacting_path}",
                _answerer(Endpoint.compacting(api)),
                methods=["POST"],
                name="compact",
                response_class=Response,
                responses={**ROUTED, **errors(api.error_body)},
                openapi_extra=routed_request(api),
                summary="Compact a conversation",
                description="Summarize a conversation, so that the client can go on from that.",
            )
        router.add_api_route(
            f"/v1{api.path}",
            _answerer(Endpoint.of(api)),
            methods=["POST"],
            name=api.operation,
            response_class=Response,
            responses={**ROUTED, **errors(api.error_body)},
            openapi_extra=routed_request(api),
            summary=api.summary,
            description=api.description,
        )
    return router


def _answerer(endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        return RoutedAnswer(endpoint, request)

    return answer


@routes.post(
    "/v1/embeddings",
    response_class=Response,
    responses=ANSWER,
    openapi_extra=model_request(),
    summary="Embeddings",
)
@routes.post(
    "/v1/completions",
    response_class=Response,
    responses=ANSWER,
    openapi_extra=model_request(),
    summary="Text completions",
)
async def named_model(request: Request) -> Response:
    """Answer with the model of the pool that the request body names."""
    path, _ = upstream_path(request.scope)
    return RoutedAnswer(unrouted(path), request)


class RoutedAnswer(Response):
    """Response that plans a request, sends it to models of the pool, and relays the answer.

    If the client disconnects, the call to the upstream is cancelled at once. The HTTP status is
    sent only with the first bytes of the answer, so that an earlier failure gets an error status.
    """

    status_code = 200
    background = None

    def __init__(self, endpoint: Endpoint, request: Request) -> None:
        """Store the request; it is answered when this object is called."""
        # Not `super().__init__()`, which would write headers that are not sent.
        self._endpoint = endpoint
        self._request = request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, from its body to its decision record."""
        call, gateway = call_of(self._request), gateway_of(self._request)
        connection = connection_of(scope)
        # Use one engine for the whole request, even if the configuration is reloaded meanwhile.
        try:
            async with gateway.engine as engine:
                with ClientWatch(connection) as watch:
                    try:
                        await self._plan(call, gateway, engine, watch)
                    except SwitchcraftError as exc:
                        await refuse(gateway, scope, exc)(scope, receive, send)
                        return
                    except ClientDisconnect:
                        raise
                    except Exception:
                        call.refusal = "internal_error"
                        gateway.recorder.ended(call, 500)
                        raise
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

    async def _plan(self, call: Call, gateway: Gateway, engine: Engine, watch: ClientWatch) -> None:
        """Read, admit and plan the request.

        Raises SwitchcraftError, and ClientDisconnect if the client leaves.
        """
        verification = engine.settings.router.verification
        call.deadline_s = read_deadline(call)
        timer = Timer(time.perf_counter)
        call.stages = timer.stages
        body = await read_body(call, self._request.receive, gateway.server)
        watch.begin()
        timer.end(StageName.BODY)
        grant = await admit(gateway, call, self._endpoint.path, len(body))
        headers = PolicyHeaders(call.headers, verification, call.key, grant.allowance)
        planned_s, session = time.perf_counter(), read_session_header(call.headers)
        plan = await plan_request(
            gateway, engine, self._endpoint, body, headers=headers, session=session, timer=timer
        )
        call.decision_s = time.perf_counter() - planned_s
        call.is_late = call.decision_s > engine.settings.router.latency_budget_s
        if plan.verified is not None:
            call.limits = headers.limits
            check_limits(plan, call.limits)
        if grant.reserves:
            await _within_budget(gateway, call, plan)
        call.query = BETA if self._request.scope["query_string"] == BETA.encode() else ""
        run = partial(gateway.decisions.run, call.key.name, len(body))
        call.begin(plan, run)


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
        cheapest_usd = min(plan.decision.cost_usd.values())
        call.limits = replace(call.limits, max_cost_usd=max(allowance_usd, cheapest_usd))
