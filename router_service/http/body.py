"""Reads a request's body, up to a limit and within a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from starlette.requests import Request

from router_service.core.errors import (
    BodyTimeoutError,
    BodyTooLargeError,
    UnsupportedEncodingError,
)
from router_service.http.admission import slot_of
from router_service.http.asgi import unless_client_leaves
from router_service.http.auth import caller_of
from router_service.http.state import gateway_of
from router_service.requests.planning import AT_ONCE_BYTES
from router_service.settings import ServerSettings

BODY_COPIES = 3
"""How often a body is in memory while it is forwarded: as it came, around its model's name, and as
it is sent."""

T = TypeVar("T")


async def read_body(
    request: Request, server: ServerSettings, limit_bytes: int | None = None
) -> bytes:
    """Return the body; raises BodyTooLargeError as soon as it is clear, or ClientDisconnect.

    The limit is `server.max_body_bytes`, or `limit_bytes` if that is lower.

    Compressed bodies are refused (UnsupportedEncodingError): a small one could unpack to any size.
    The time is for the whole body (BodyTimeoutError): with one for each part, a client that sends
    a byte now and then could keep its slot as long as it likes. The body counts towards the memory
    that requests may hold, which raises OverloadedError.
    """
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in {"", "identity"}:
        raise UnsupportedEncodingError(encoding[:40])
    timeout_s = server.body_timeout_s
    limit_bytes = min(server.max_body_bytes, limit_bytes or server.max_body_bytes)
    announced = request.headers.get("content-length", "")
    if announced.isascii() and announced.isdigit() and int(announced) > limit_bytes:
        raise BodyTooLargeError(limit_bytes)
    try:
        async with asyncio.timeout(timeout_s):
            return await _read(request, limit_bytes)
    except TimeoutError as exc:
        raise BodyTimeoutError(timeout_s) from exc


async def read_by(read: Callable[[bytes], T], request: Request, body: bytes) -> T:
    """Return what a function reads in a request's body, in a decisions' thread if that takes long.

    Raises as the function does, OverloadedError, and ClientDisconnect if the client leaves.
    """
    if len(body) <= AT_ONCE_BYTES:
        return read(body)
    in_queue = gateway_of(request).in_queue
    return await unless_client_leaves(request.receive, in_queue(caller_of(request), read, body))


async def _read(request: Request, limit_bytes: int) -> bytes:
    slot = slot_of(request)
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit_bytes:
            raise BodyTooLargeError(limit_bytes)
        if slot is not None:
            slot.hold(BODY_COPIES * len(part))
        parts.append(part)
    return b"".join(parts)
