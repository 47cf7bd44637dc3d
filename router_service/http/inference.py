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
    VERIFIED_GOALS_HEADER,
    ClientWatch,
    admit,
    call_of,
    gateway_of,
    part_writer_of,
    read_body,
    read_deadline,
    read_limits,
    read_verified_goals,
    reserve,
    upstream_path,
)
from router_service.requests.call import Ending
from router_service.requests.deciding import plan_request
from router_service.requests.parsing import (
    Endpoint,
    read_session_header,
    unrouted,
)
from router_service.requests.planning import POLICY_HEADER, Plan, PolicyHeaders
from router_service.requests.verification import check_limits
from router_service.runtime.engine import Engine
from router_service.verifier.steps import VerificationLimits

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
        request, call = self._request, call_of(self._request)
        gateway = gateway_of(request)
        # Use one engine for the whole request, even if the configuration is reloaded meanwhile.
        try:
            async with gateway.engine as engine:
                with ClientWatch(receive) as watch:
                    try:
                        limits = await self._plan(engine, watch)
                    except SwitchcraftError as exc:
                        await refuse(gateway, scope, exc)(scope, receive, send)
                        return
                    except ClientDisconnect:
                        raise
                    except Exception:
                        call.refusal = "internal_error"
                        gateway.recorder.ended(call, 500)
                        raise
                    relay = AnswerRelay(call, gateway, engine.attempts, send, part_writer_of(scope))
                    try:
                        if limits is None:
                            await relay.run()
                        else:
                            keep_alive_s = engine.settings.router.verification.keep_alive_s
                            await relay_verified(relay, limits, keep_alive_s)
                    except (Exception, asyncio.CancelledError) as exc:
                        if not watch.has_left:
                            self._note_failure(exc)
                        raise
                    finally:
                        gateway.recorder.answered(call)
        except ClientDisconnect:
            if not call.is_logged:
                gateway.recorder.ended(call, CLIENT_LEFT)

    async def _plan(self, engine: Engine, watch: ClientWatch) -> VerificationLimits | None:
        """Read, admit and plan the request; return the limits if its answer is verified.

        Raises SwitchcraftError, and ClientDisconnect if the client leaves.
        """
        request, call = self._request, call_of(self._request)
        gateway, verification = gateway_of(request), engine.settings.router.verification
        with call.trace.decision_span():
            call.deadline_s = read_deadline(request)
            timer = Timer(time.perf_counter)
            body = await read_body(request, gateway.server)
            watch.begin()
            timer.end(StageName.BODY)
            grant = await admit(request, self._endpoint.path, len(body))
            limits = read_limits(call.headers, verification)
            plan = await plan_request(
                gateway,
                engine,
                self._endpoint,
                body,
                headers=PolicyHeaders(
                    call.headers.get(POLICY_HEADER),
                    verified_goals=read_verified_goals(call.headers, verification, limits),
                    verified_budget=call.headers.get(VERIFIED_GOALS_HEADER) == "true",
                    key=call.key,
                    allowance=grant.allowance,
                    user_agent=call.headers.get("user-agent", ""),
                ),
                session=read_session_header(call.headers),
                timer=timer,
            )
            call.stages = timer.stages
            if plan.verified is not None:
                check_limits(plan, limits)
            if grant.reserves:
                limits = await _within_budget(request, plan, limits)
        call.translation = plan.request.translation
        if call.translation is not None:
            run = partial(gateway.decisions.run, call.key.name, len(body))
            call.translation.reserve_memory, call.translation.run_in_thread = call.hold_memory, run
        call.query = BETA if request.scope["query_string"] == BETA.encode() else ""
        call.begin(plan)
        return None if plan.verified is None else limits

    def _note_failure(self, exc: BaseException) -> None:
        """Note that the gateway failed to answer, or that its shutdown ended the request."""
        call, drain = call_of(self._request), gateway_of(self._request).drain
        error = exc if isinstance(exc, Exception) else drain.cut_off_error()
        if error is not None and not call.was_cut_off:  # else the answer has its ending
            call.was_cut_off = error is not exc
            call.end(status_of(error), Ending.FAILED)


async def _within_budget(
    request: Request, plan: Plan, limits: VerificationLimits
) -> VerificationLimits:
    """Reserve the cost of a plan, change it to what the budget allows, and return its limits."""
    is_verified = plan.verified is not None
    cost = plan.expected_cost(limits.max_candidates if is_verified else 1)
    allowance_usd = await reserve(request, cost)
    if allowance_usd < cost.usd * (1 - 1e-6):  # by more than it was rounded
        plan.planner.within(plan, allowance_usd)
    if is_verified and allowance_usd < limits.max_cost_usd and plan.decision is not None:
        # The cheapest arm may always be asked.
        cheapest_usd = min(plan.decision.cost_usd.values())
        limits = replace(limits, max_cost_usd=max(allowance_usd, cheapest_usd))
    return limits
