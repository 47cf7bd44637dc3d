"""Lets requests in by their key; what no rule allows is refused."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from router_service.api.errors import error_response
from router_service.core.errors import ForbiddenError, InvalidRequestError, UnauthorizedError
from router_service.serving.access import Access, is_loopback
from router_service.telemetry.metrics import Metrics

PUBLIC_PATHS = frozenset(
    "/healthz /readyz /health/liveliness /health/liveness /health/readiness".split()
)
"""What probes ask, without a key; these say nothing that a stranger may not know."""

ADMIN_PATHS = frozenset(("/metrics", "/openapi.json"))
ADMIN_PREFIX = "/admin/"

CALLER = "caller"
"""Where the name of a request's key stands in `scope["state"]`; None where none is configured."""

_BEARER = "bearer "


class Authentication:
    """ASGI middleware that decides by the path that is routed, and by nothing derived from it.

    `scope["path"]` is what the routes are matched with; a URL rebuilt from the Host header may
    have another path (CVE-2026-48710). Nothing is remembered from one request to the next.
    """

    def __init__(self, app: ASGIApp, access: Callable[[], Access], metrics: Metrics) -> None:
        """Guard an app; `access` is asked at each request, for keys may be exchanged."""
        self._app = app
        self._access = access
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        try:
            caller = admit(self._access(), scope["path"], Headers(scope=scope))
        except InvalidRequestError as exc:
            self._metrics.refused_callers.labels(exc.code).inc()
            await error_response(exc)(scope, receive, send)
            return
        scope.setdefault("state", {})[CALLER] = caller
        await self._app(scope, receive, send)


def admit(access: Access, path: str, headers: Headers) -> str | None:
    """Return the name of the key that lets a request in, or None where it needs none.

    Raises UnauthorizedError or ForbiddenError.
    """
    if path in PUBLIC_PATHS:
        return None
    if access.is_open:
        refuse_strangers(headers)
        return None
    needs_admin = path in ADMIN_PATHS or path.startswith(ADMIN_PREFIX)
    key = sent_key(headers)
    caller = access.caller(key, needs_admin=needs_admin) if key else None
    if caller is not None:
        return caller
    if needs_admin and access.caller(key, needs_admin=False) is not None:
        raise ForbiddenError(
            f"{path[:80]} needs the admin key. Send it, or ask the operator to set keys.admin.",
            code="admin_key_needed",
        )
    raise UnauthorizedError(is_missing=not key)


def caller_of(request: Request) -> str | None:
    """Return the name of the key that let a request in; None where none is configured."""
    caller: str | None = request.scope.get("state", {}).get(CALLER)
    return caller


def sent_key(headers: Headers) -> bytes:
    """Return the key of a request as OpenAI's, Azure's and Anthropic's clients send it, or b""."""
    authorization = headers.get("authorization", "")
    if authorization[: len(_BEARER)].lower() == _BEARER:
        key = authorization[len(_BEARER) :]
    else:
        key = headers.get("api-key") or headers.get("x-api-key") or ""
    return key.strip().encode("latin-1")


def refuse_strangers(headers: Headers) -> None:
    """Raise ForbiddenError for what a browser sends to a gateway without keys for a foreign page.

    Such a gateway trusts whoever connects from this machine, and a browser connects for every
    page that it shows. A page of another origin is known by `Origin` or `Sec-Fetch-Site`, a name
    that was rebound to this machine's address by `Host`.
    """
    if not is_loopback(_host_of(f"//{headers.get('host', '')}")):
        raise ForbiddenError(
            "The Host header is not this machine's own name. A gateway without keys answers to "
            "localhost alone; set a key to serve it under another name.",
            code="foreign_host",
        )
    origin = headers.get("origin")
    is_foreign = (
        headers.get("sec-fetch-site") in {"cross-site", "same-site"}
        if origin is None
        else not is_loopback(_host_of(origin))
    )
    if is_foreign:
        raise ForbiddenError(
            "The request comes from a web page of another origin. A gateway without keys serves "
            "none; set a key.",
            code="foreign_origin",
        )


def _host_of(address: str) -> str:
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""
