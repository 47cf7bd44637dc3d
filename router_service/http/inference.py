"""Routes that plan a request, send it to models of the pool, relay the answer, and record it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from fastapi import APIRouter
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from router_service.apis.registry import APIS
from router_service.core.errors import SwitchcraftError
from router_service.core.resources import StageName, Timer
from router_service.http.deferred import DeferredRelay
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
    admit,
    gateway_of,
    info_of,
    part_writer_of,
    read_body,
    read_deadline,
    read_limits,
    read_verified_goals,
    reserve,
    unless_client_leaves,
    upstream_path,
)
from router_service.requests.deciding import plan_request
from router_service.requests.escalation import check_limits
from router_service.requests.exchange import Ending, Exchange
from router_service.requests.parsing import (
    Endpoint,
    read_session_header,
    unrouted,
)
from router_service.requests.planning import POLICY_HEADER, Plan, PolicyHeaders
from router_service.upstream.retries import UpstreamRequest
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
        self.exchange: Exchange | None = None
        """The planned request and its answer; None until it is planned."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, from its body to its decision record."""
        request, info = self._request, info_of(self._request)
        gateway = gateway_of(request)
        # Use one engine for the whole request, even if the configuration is reloaded meanwhile.
        async with gateway.engine as engine:
            verification = engine.settings.router.verification
            limits: VerificationLimits | None = None
            try:
                with info.trace.decision_span():
                    deadline_s = read_deadline(request)
                    timer = Timer(time.perf_counter)
                    body = await read_body(request, gateway.server)
                    timer.end(StageName.BODY)
                    asked_policy = info.headers.get(POLICY_HEADER)
                    grant = await admit(request, self._endpoint.path, len(body), asked_policy)
                    planning = plan_request(
                        gateway,
                        engine,
                        self._endpoint,
                        body,
                        key=info.api_key,
                        headers=PolicyHeaders(
                            grant.policy or asked_policy,
                            verified_goals=read_verified_goals(info.headers, verification),
                            verified_budget=info.headers.get(VERIFIED_GOALS_HEADER) == "true",
                            is_granted=grant.policy is not None,
                            allowance=grant.allowance,
                        ),
                        session=read_session_header(info.headers),
                        timer=timer,
                    )
                    plan = await unless_client_leaves(receive, planning)
                    if plan.verified is not None:
                        limits = read_limits(info.headers, verification)
                        check_limits(plan, limits)
                    if grant.reserves:
                        plan, limits = await _within_budget(request, receive, plan, limits)
            except (ClientDisconnect, SwitchcraftError) as exc:
                await refuse(gateway, scope, exc)(scope, receive, send)
                return
            except Exception:
                info.refusal = "internal_error"
                gateway.recorder.ended(info, 500)
                raise

            parsed, endpoint = plan.request, plan.request.endpoint
            if parsed.translation is not None:
                parsed.translation.reserve_memory = info.hold_memory
                parsed.translation.run_in_thread = partial(
                    gateway.decisions.run, info.key, len(body)
                )
            upstream_request = UpstreamRequest(
                plan.candidates,
                endpoint.path,
                parsed.body,
                info.headers,
                deadline_s,
                translation=parsed.translation,
                query=BETA if scope["query_string"] == BETA.encode() else "",
                expects_json=endpoint.is_json,
                client=info.key,
                conversation=plan.conversation.state.id if plan.conversation else None,
                trace=info.trace,
                reserve_memory=info.hold_memory,
            )

            self.exchange = exchange = Exchange(info, plan, timer.stages)
            relay = AnswerRelay(
                exchange, gateway, engine.attempts, upstream_request, send, part_writer_of(scope)
            )
            run = relay.run
            if limits is not None:
                run = DeferredRelay(relay, limits, verification.keep_alive_s).run
            try:
                with suppress(ClientDisconnect):
                    await unless_client_leaves(receive, run())
            except (Exception, asyncio.CancelledError) as exc:
                # A client that left is no failure, and an answer that was cut off has its ending.
                error = exc if isinstance(exc, Exception) else gateway.drain.cut_off_error()
                if error is not None and not exchange.was_cut_off:
                    exchange.was_cut_off = error is not exc
                    exchange.end(status_of(error), Ending.FAILED)
                raise
            finally:
                gateway.recorder.answered(exchange)


async def _within_budget(
    request: Request, receive: Receive, plan: Plan, limits: VerificationLimits | None
) -> tuple[Plan, VerificationLimits | None]:
    """Reserve the cost of a plan; return the plan and its limits within what the budget allows."""
    cost = plan.expected_cost(1 if limits is None else limits.max_candidates)
    allowance_usd = await reserve(request, receive, cost)
    if allowance_usd < cost.usd * (1 - 1e-6):  # by more than it was rounded
        plan.planner.within(plan, allowance_usd)
    if limits is not None and allowance_usd < limits.max_cost_usd and plan.decision is not None:
        # The cheapest arm may always be asked.
        cheapest_usd = min(plan.decision.cost_usd.values())
        limits = replace(limits, max_cost_usd=max(allowance_usd, cheapest_usd))
    return plan, limits
