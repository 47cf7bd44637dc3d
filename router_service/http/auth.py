"""Authenticates requests by their API key, and protects the web page in browsers.

The page itself is public: it contains no data. Its scripts send the key that the user has entered
in a header, as every other client does, so other sites' pages can do nothing with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import urlsplit

from router_service.access.key import NO_KEY, Key, Permission
from router_service.access.keyring import KeyRing
from router_service.core.addresses import is_loopback
from router_service.core.errors import InvalidRequestError
from router_service.core.refusals import KEY_INVALID, KEY_MISSING, KEYS_UNAVAILABLE

PUBLIC_PATHS = frozenset(
    "/ /docs /healthz /readyz /health/liveliness /health/liveness /health/readiness".split()
)
"""Paths that need no key: probes, and redirects to the page. Claude Code probes `/`."""

METRICS_PATH = "/metrics"
ADMIN_PATHS = frozenset(("/openapi.json",))
ADMIN_PREFIX = "/admin/"

UI_PATH = "/ui"
UI_PREFIX = "/ui/"
UI_API_PREFIX = "/ui/api/"
UI_DESCRIPTION_PATH = "/ui/openapi.json"
"""The OpenAPI description, for the page of every key."""
CLIENTS_UI_PREFIX = "/ui/api/traffic/"
"""Prefix of the page's API that every key may use, for what the key's own requests did."""

PAGE_HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; object-src 'none'; require-trusted-types-for 'script'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # Browsers revalidate files on each use, so that an update of the gateway is visible at once.
    "cache-control": "private, no-cache",
}
"""Headers of every answer below `/ui`: the page may load only its own files."""

ADMIN_HEADERS = {"cache-control": "no-store"}
"""Headers of every answer below `/admin/`, because some contain the secret of a new key."""

_BEARER = "bearer "


def authenticate(keys: KeyRing, path: str, headers: Mapping[str, str]) -> Key:
    """Return the key that allows a request, or `NO_KEY` if the request needs none.

    Raises InvalidRequestError.
    """
    if path in PUBLIC_PATHS:
        return NO_KEY
    if keys.is_open:
        refuse_foreign_pages_without_keys(path, headers)
        return NO_KEY
    if is_page_file(path):
        return NO_KEY
    needed = Permission.CALL
    if path == METRICS_PATH:
        needed = Permission.METRICS
    elif path in ADMIN_PATHS or path.startswith((ADMIN_PREFIX, UI_API_PREFIX)):
        needed = Permission.CALL if path.startswith(CLIENTS_UI_PREFIX) else Permission.ADMIN
    secret = read_key(headers)
    found = keys.find(secret, needed)
    if found is not None:
        return found
    if needed is not Permission.CALL and keys.find(secret, Permission.CALL) is not None:
        raise InvalidRequestError(
            f"{path[:80]} needs the admin key. Send it, or ask the operator to set keys.admin.",
            code="admin_key_needed",
            status=403,
        )
    if keys.find(secret, Permission.METRICS) is not None:
        raise InvalidRequestError(
            f"The metrics key is valid only for {METRICS_PATH}. Send another key for this path.",
            code="metrics_key_only",
            status=403,
        )
    if keys.may_be_incomplete:
        raise KEYS_UNAVAILABLE.error()
    raise (KEY_INVALID if secret else KEY_MISSING).error()


def is_ui_path(path: str) -> bool:
    """Return whether a path belongs to the web page, which people open in a browser."""
    return path == UI_PATH or path.startswith(UI_PREFIX)


def is_page_file(path: str) -> bool:
    """Return whether a path is that of the page or of one of its files, which contain no data."""
    is_data = path == UI_DESCRIPTION_PATH or path.startswith(UI_API_PREFIX)
    return is_ui_path(path) and not is_data


def read_key(headers: Mapping[str, str]) -> bytes:
    """Return the key as OpenAI's, Azure's and Anthropic's clients send it, or b"" without one."""
    authorization = headers.get("authorization", "")
    if authorization[: len(_BEARER)].lower() == _BEARER:
        key = authorization[len(_BEARER) :]
    else:
        key = headers.get("api-key") or headers.get("x-api-key") or ""
    return key.strip().encode("latin-1")


def refuse_foreign_pages_without_keys(path: str, headers: Mapping[str, str]) -> None:
    """Raise InvalidRequestError if another site's page makes a browser use a gateway without keys.

    A gateway without keys trusts every program on this machine, but a browser sends requests for
    every page that it shows. `Origin` or `Sec-Fetch-Site` reveal a page of another origin. `Host`
    reveals a name that was rebound to this machine's address (DNS rebinding).
    """
    if not _is_own_name(headers.get("host", "")):
        raise InvalidRequestError(
            "The Host header is not a name of this machine. Without keys, the gateway accepts only "
            "requests to localhost. Set a key to serve it under another name.",
            code="foreign_host",
            status=403,
        )
    origin = headers.get("origin")
    if origin is None:
        is_foreign = headers.get("sec-fetch-site") in {"cross-site", "same-site"}
        is_foreign = is_foreign and not _is_navigation_to_page(path, headers)
    else:
        is_foreign = not is_loopback(_split_url(origin)[1])
    if is_foreign:
        raise InvalidRequestError(
            "The request comes from a web page of another origin, which a gateway without keys "
            "refuses. Set a key in keys.api, and send it with the request.",
            code="foreign_origin",
            status=403,
        )


def _is_navigation_to_page(path: str, headers: Mapping[str, str]) -> bool:
    """Return whether the user followed a link to the page, which the linking site cannot read."""
    is_document = headers.get("sec-fetch-dest") == "document"
    return path == UI_PATH and is_document and headers.get("sec-fetch-mode") == "navigate"


@lru_cache(maxsize=64)
def _is_own_name(host: str) -> bool:
    """Return whether a Host header names this machine; cached, because few values repeat."""
    return is_loopback(_split_url(f"//{host}")[1])


def _split_url(url: str) -> tuple[str, str]:
    """Return a URL's host with port, and its host name; empty strings if the URL is invalid."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "", ""
    return parts.netloc, parts.hostname or ""
