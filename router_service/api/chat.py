"""`POST /v1/chat/completions`."""

from __future__ import annotations

import secrets
import time

from fastapi import APIRouter
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from router_service.api.answer import RelayedAnswer
from router_service.api.body import read_body
from router_service.api.errors import CLIENT_LEFT, error_response, status_of
from router_service.api.gateway import Gateway, gateway_of
from router_service.api.planning import POLICY_HEADER, Plan
from router_service.api.recorder import Call
from router_service.core.errors import SwitchcraftError

MAX_REQUEST_ID = 200
"""Longest id of a client's that is logged and given back, in characters."""

routes = APIRouter()


@routes.post("/v1/chat/completions", response_class=Response)
async def chat_completions(request: Request) -> Response:
    """Answer a chat request by the pool's model that is the right one for it."""
    gateway = gateway_of(request)
    call = _call(request)
    try:
        plan = await _plan(gateway, request)
    except ClientDisconnect:
        gateway.recorder.left(call, CLIENT_LEFT)
        return Response(status_code=CLIENT_LEFT)
    except SwitchcraftError as exc:
        gateway.recorder.refused(call, status_of(exc))
        return error_response(exc, {"x-request-id": call.request_id})
    except Exception:
        gateway.recorder.refused(call, 500)
        raise
    return RelayedAnswer(gateway.upstream, gateway.recorder, request=request, plan=plan, call=call)


async def _plan(gateway: Gateway, request: Request) -> Plan:
    body = await read_body(request, gateway.settings.server.max_body_bytes)
    return await gateway.plan(body, request.headers.get(POLICY_HEADER))


def _call(request: Request) -> Call:
    decision_id = f"dec_{secrets.token_hex(12)}"
    theirs = request.headers.get("x-request-id", "")[:MAX_REQUEST_ID]
    return Call(decision_id, theirs or decision_id, time.perf_counter())
