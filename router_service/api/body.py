"""Reads a request's body, up to a limit and within a time."""

from __future__ import annotations

import asyncio

from starlette.requests import Request

from router_service.core.errors import (
    BodyTimeoutError,
    BodyTooLargeError,
    UnsupportedEncodingError,
)
from router_service.settings import ServerSettings


async def read_body(request: Request, server: ServerSettings) -> bytes:
    """Return the body; raises BodyTooLargeError as soon as it is clear, or ClientDisconnect.

    Compressed bodies are refused (UnsupportedEncodingError): a small one could unpack to any size.
    The time is for the whole body (BodyTimeoutError): with one for each part, a client that sends
    a byte now and then would be waited for as long as it likes.
    """
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in {"", "identity"}:
        raise UnsupportedEncodingError(encoding[:40])
    limit_bytes, timeout_s = server.max_body_bytes, server.body_timeout_s
    announced = request.headers.get("content-length", "")
    if announced.isascii() and announced.isdigit() and int(announced) > limit_bytes:
        raise BodyTooLargeError(limit_bytes)
    try:
        async with asyncio.timeout(timeout_s):
            return await _read(request, limit_bytes)
    except TimeoutError as exc:
        raise BodyTimeoutError(timeout_s) from exc


async def _read(request: Request, limit_bytes: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit_bytes:
            raise BodyTooLargeError(limit_bytes)
        parts.append(part)
    return b"".join(parts)
