"""Lets requests in by their key; what no rule allows is refused."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from router_service.accounts.access import Access, is_loopback
from router_service.core.errors import ForbiddenError, InvalidRequestError, UnauthorizedError
from router_service.http.errors import error_response
from router_service.telemetry.metrics import Metrics

PUBLIC_PATHS = frozenset(
    "/healthz /readyz /health/liveliness /health/liveness /health/readiness".split()
)
"""What probes ask, without a key; these say nothing that a stranger may not know."""

METRICS_PATH = "/metrics"
ADMIN_PATHS = frozenset((METRICS_PATH, "/openapi.json"))
ADMIN_PREFIX = "/admin/"

PAGE = "/ui"
PAGE_PREFIX = "/ui/"

CALLER = "caller"
"""Where the name of a request's key stands in `scope["state"]`; None where none is configured."""

_BEARER, _BASIC = "bearer ", "basic "


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
    """Return the name of the key that allows a request, or None if the request needs none.

    Raises UnauthorizedError or ForbiddenError.
    """
    if path in PUBLIC_PATHS:
        return None
    if access.is_open:
        refuse_strangers(path, headers)
        return None
    if is_page(path):
        return _admit_to_page(access, path, headers)
    needs_admin = path in ADMIN_PATHS or path.startswith(ADMIN_PREFIX)
    key = sent_key(headers)
    caller = access.scraper(key) if key and path == METRICS_PATH else None
    caller = caller or (access.caller(key, needs_admin=needs_admin) if key else None)
    if caller is not None:
        return caller
    if needs_admin and access.caller(key, needs_admin=False) is not None:
        raise ForbiddenError(
            f"{path[:80]} needs the admin key. Send it, or ask the operator to set keys.admin.",
            code="admin_key_needed",
        )
    if access.scraper(key) is not None:
        raise ForbiddenError(
            f"The metrics key opens {METRICS_PATH} only; this path needs another key.",
            code="metrics_key_only",
        )
    raise UnauthorizedError(is_missing=not key)


def caller_of(request: Request) -> str | None:
    """Return the name of the key that let a request in; None where none is configured."""
    caller: str | None = request.scope.get("state", {}).get(CALLER)
    return caller


def is_page(path: str) -> bool:
    """Whether a path is the page's, which people open in a browser."""
    return path == PAGE or path.startswith(PAGE_PREFIX)


def _admit_to_page(access: Access, path: str, headers: Headers) -> str:
    """Return the admin key's name; a browser asks for the key, and then sends it by itself."""
    refuse_other_sites(path, headers)
    key = _password(headers) or sent_key(headers)
    caller = access.caller(key, needs_admin=True) if key else None
    if caller is not None:
        return caller
    # Where there is an admin key the browser asks again: to a 403 it would send the same for ever.
    if not access.admin and access.caller(key, needs_admin=False) is not None:
        raise ForbiddenError(
            "The page needs the admin key, and none is configured. Ask the operator to set "
            "keys.admin.",
            code="admin_key_needed",
        )
    raise UnauthorizedError(is_missing=not key, asks_browser=True)


def _password(headers: Headers) -> bytes:
    """Return the password that a browser sends (RFC 7617), or b""; any user name will do."""
    authorization = headers.get("authorization", "")
    if authorization[: len(_BASIC)].lower() != _BASIC:
        return b""
    try:
        decoded = base64.b64decode(authorization[len(_BASIC) :].strip(), validate=True)
    except (binascii.Error, ValueError):
        return b""
    return decoded.partition(b":")[2].strip()


def sent_key(headers: Headers) -> bytes:
    """Return the key of a request as OpenAI's, Azure's and Anthropic's clients send it, or b""."""
    authorization = headers.get("authorization", "")
    if authorization[: len(_BEARER)].lower() == _BEARER:
        key = authorization[len(_BEARER) :]
    else:
        key = headers.get("api-key") or headers.get("x-api-key") or ""
    return key.strip().encode("latin-1")


def refuse_other_sites(path: str, headers: Headers) -> None:
    """Raise ForbiddenError for what a browser sends for another site's page.

    It adds the stored password to any request, whoever made it. Browsers of before 2023 say no
    `Sec-Fetch-Site`, but with what changes anything an `Origin`.
    """
    if _is_visit(path, headers):
        return
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    is_foreign = (
        origin is not None and _netloc_of(origin) != headers.get("host", "")
        if site is None
        else site not in {"same-origin", "none"}
    )
    if is_foreign:
        raise ForbiddenError(
            "The request comes from a web page of another origin. Open the page itself.",
            code="foreign_origin",
        )


def _is_visit(path: str, headers: Headers) -> bool:
    """Whether a link was followed to the page: nothing of it is shown to where the link stood."""
    is_document = headers.get("sec-fetch-dest") == "document"
    return path == PAGE and is_document and headers.get("sec-fetch-mode") == "navigate"


def refuse_strangers(path: str, headers: Headers) -> None:
    """Raise ForbiddenError for what a browser sends to a gateway without keys for a foreign page.

    Such a gateway trusts whoever connects from this machine, and a browser connects for every
    page that it shows. A page of another origin is known by `Origin` or `Sec-Fetch-Site`, a name
    that was rebound to this machine's address by `Host`.
    """
    if not _is_own_name(headers.get("host", "")):
        raise ForbiddenError(
            "The Host header is not this machine's own name. A gateway without keys answers to "
            "localhost alone; set a key to serve it under another name.",
            code="foreign_host",
        )
    origin = headers.get("origin")
    is_foreign = (
        headers.get("sec-fetch-site") in {"cross-site", "same-site"}
        and not _is_visit(path, headers)
        if origin is None
        else not is_loopback(_host_of(origin))
    )
    if is_foreign:
        raise ForbiddenError(
            "The request comes from a web page of another origin. A gateway without keys serves "
            "none; set a key.",
            code="foreign_origin",
        )


@lru_cache(maxsize=64)
def _is_own_name(host: str) -> bool:
    """Whether a Host header is this machine's own name; clients send the same again and again."""
    return is_loopback(_host_of(f"//{host}"))


def _netloc_of(address: str) -> str:
    try:
        return urlsplit(address).netloc
    except ValueError:
        return ""


def _host_of(address: str) -> str:
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""
