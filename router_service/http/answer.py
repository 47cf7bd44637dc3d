"""The answer to a routed request: its body, its plan, and then the exchange with upstreams."""

from __future__ import annotations

import asyncio
import math
import time

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from router_service.core.errors import InvalidRequestError, SwitchcraftError
from router_service.core.stages import StageName, Timer
from router_service.http.accounting import CALL
from router_service.http.admission import slot_of
from router_service.http.asgi import unless_client_leaves
from router_service.http.auth import caller_of
from router_service.http.body import read_body
from router_service.http.exchange import Exchange
from router_service.http.refusals import refusal
from router_service.lifecycle.engine import Engine
from router_service.lifecycle.gateway import Gateway
from router_service.requests.parsing import Endpoint
from router_service.requests.planning import POLICY_HEADER, plan_request
from router_service.requests.recorder import Call
from router_service.upstream.client import DEADLINE_HEADER, unlimited
from router_service.upstream.retries import UpstreamRequest

MAX_DEADLINE_S = 24 * 3600.0
"""Longest time that a request may ask for."""


class RoutedAnswer(Response):
    """Reads a request, plans it, asks upstreams, and passes on the answer.

    A client that leaves cancels the call to the upstream at once. Nothing is sent before the
    answer's first bytes are there, so that until then a failure has its own status.
    """

    def __init__(self, gateway: Gateway, endpoint: Endpoint, request: Request) -> None:
        """Prepare an answer; all happens when it is awaited."""
        super().__init__()
        self._gateway = gateway
        self._endpoint = endpoint
        self._request = request
        self._call = read_call(request)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, with one engine from the start to the end."""
        async with self._gateway.engine.lease() as engine:
            answer = await self._planned(engine, receive)
            await answer(scope, receive, send)

    async def _planned(self, engine: Engine, receive: Receive) -> ASGIApp:
        gateway, request, call = self._gateway, self._request, self._call
        try:
            deadline_s = read_deadline(request)
            with call.trace.decision_span():
                timer = Timer(time.perf_counter)
                body = await read_body(request, gateway.server)
                timer.end(StageName.BODY)
                planning = plan_request(
                    gateway,
                    engine,
                    self._endpoint,
                    body,
                    caller=call.key,
                    policy=request.headers.get(POLICY_HEADER),
                    timer=timer,
                )
                plan = await unless_client_leaves(receive, planning)
        except (ClientDisconnect, SwitchcraftError) as exc:
            return refusal(gateway.recorder, call, exc)
        except Exception:
            gateway.recorder.refused(call, 500)
            raise
        slot = slot_of(request)
        order = UpstreamRequest(
            plan.candidates,
            plan.request.endpoint.path,
            plan.request.body,
            request.headers,
            deadline_s,
            expects_json=plan.request.endpoint.is_json,
            client=call.key,
            trace=call.trace,
            reserve_memory=slot.hold if slot is not None else unlimited,
        )
        return Exchange(engine.attempts, gateway, order, plan=plan, call=call)


def read_call(request: Request) -> Call:
    """Return what a request is known by, now that it is known by whose key it came."""
    call: Call = request.scope["state"][CALL]
    call.key = caller_of(request)
    return call


def read_deadline(request: Request) -> float:
    """Return when the request's own time is over, by the event loop's clock."""
    text = request.headers.get(DEADLINE_HEADER)
    if text is None:
        return math.inf
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= MAX_DEADLINE_S:
        raise InvalidRequestError(
            f"The header {DEADLINE_HEADER} must be seconds, more than 0 and at most"
            f" {MAX_DEADLINE_S:.0f}; it says how long this request may take.",
            param=DEADLINE_HEADER,
            code="invalid_value",
        )
    return asyncio.get_running_loop().time() + seconds
