"""Reads a request's body, up to a limit."""

from __future__ import annotations

from starlette.requests import Request

from router_service.core.errors import BodyTooLargeError, UnsupportedEncodingError


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """Return the body; raises BodyTooLargeError as soon as it is clear, or ClientDisconnect.

    Compressed bodies are refused (UnsupportedEncodingError): a small one could unpack to any size.
    """
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in {"", "identity"}:
        raise UnsupportedEncodingError(encoding[:40])
    announced = request.headers.get("content-length", "")
    if announced.isascii() and announced.isdigit() and int(announced) > limit_bytes:
        raise BodyTooLargeError(limit_bytes)
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit_bytes:
            raise BodyTooLargeError(limit_bytes)
        parts.append(part)
    return b"".join(parts)
