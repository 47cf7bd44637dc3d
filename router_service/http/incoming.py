"""Read a request: its gateway, its metadata, its deadline and its body."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import TypeVar, cast

from starlette.requests import Request

from router_service.core.errors import (
    BodyTimeoutError,
    BodyTooLargeError,
    InvalidRequestError,
    UnsupportedEncodingError,
)
from router_service.http.asgi import unless_client_leaves
from router_service.http.auth import caller_of
from router_service.http.middleware import INFO, SLOT
from router_service.lifecycle.gateway import Gateway
from router_service.lifecycle.overload import Slot
from router_service.requests.exchange import RequestInfo
from router_service.requests.planning import AT_ONCE_BYTES
from router_service.settings import ServerSettings
from router_service.upstream.client import DEADLINE_HEADER

BODY_COPIES = 3
"""Copies of a body in memory while it is forwarded: as received, split around its model's name, and
as sent."""

MAX_DEADLINE_S = 24 * 3600.0
"""Longest deadline that a request may set."""

T = TypeVar("T")


def gateway_of(request: Request) -> Gateway:
    """Return the gateway that received the request."""
    return cast("Gateway", request.app.state.gateway)


def slot_of(request: Request) -> Slot | None:
    """Return the request's slot, or None if its path needs none."""
    slot: Slot | None = request.scope.get("state", {}).get(SLOT)
    return slot


def read_info(request: Request) -> RequestInfo:
    """Return the request's metadata, with the name of its API key."""
    info: RequestInfo = request.scope["state"][INFO]
    info.key = caller_of(request)
    return info


def read_deadline(request: Request) -> float:
    """Return the request's own deadline by the event loop's clock; infinity without one."""
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


async def read_body(
    request: Request, server: ServerSettings, limit_bytes: int | None = None
) -> bytes:
    """Return the body.

    The limit is `server.max_body_bytes`, or `limit_bytes` if that is lower. The timeout is for the
    whole body: with one for each part, a client that sends a byte now and then could keep its slot
    forever. Compressed bodies are refused, because a small one could unpack to any size. The body
    counts towards the memory that requests may hold.

    Raises BodyTooLargeError as soon as the size is known, BodyTimeoutError,
    UnsupportedEncodingError, OverloadedError, and ClientDisconnect.
    """
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in {"", "identity"}:
        raise UnsupportedEncodingError(encoding[:40])
    limit_bytes = min(server.max_body_bytes, limit_bytes or server.max_body_bytes)
    announced = request.headers.get("content-length", "")
    if announced.isascii() and announced.isdigit() and int(announced) > limit_bytes:
        raise BodyTooLargeError(limit_bytes)
    slot, parts, size = slot_of(request), [], 0
    try:
        async with asyncio.timeout(server.body_timeout_s):
            async for part in request.stream():
                size += len(part)
                if size > limit_bytes:
                    raise BodyTooLargeError(limit_bytes)
                if slot is not None:
                    slot.hold(BODY_COPIES * len(part))
                parts.append(part)
    except TimeoutError as exc:
        raise BodyTimeoutError(server.body_timeout_s) from exc
    return b"".join(parts)


async def read_by(read: Callable[[bytes], T], request: Request, body: bytes) -> T:
    """Return the result of a function that parses a body; a large body is parsed in a thread.

    Raises as the function does, OverloadedError, and ClientDisconnect if the client leaves.
    """
    if len(body) <= AT_ONCE_BYTES:
        return read(body)
    in_queue = gateway_of(request).in_queue
    return await unless_client_leaves(request.receive, in_queue(caller_of(request), read, body))
