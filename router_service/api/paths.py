"""The path and the query of a request that is passed on: what they may be made of."""

from __future__ import annotations

import re

from starlette.types import Scope

from router_service.core.errors import InvalidRequestError

PREFIX = "/v1"

# Segments of RFC 3986, section 3.3. An upstream might decode an encoded slash, dot, percent sign or
# control character once more than we do, and so leave the part of its API that we mean.
_SEGMENT = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%(?!2[eEfF5]|5[cC]|[01]|7[fF])[0-9A-Fa-f]{2})+"
_PATH = re.compile(rf"/v1((?:/(?!\.{{1,2}}(?:/|\Z)){_SEGMENT})+)")
_QUERY = re.compile(r"[A-Za-z0-9._~!$&'()*+,;=:@/?%\[\]-]*")


def upstream_path(scope: Scope) -> tuple[str, str]:
    """Return the path below `/v1`, and the query, as the client wrote them.

    Raises InvalidRequestError for any that could leave the upstream's base URL.
    """
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    path = _PATH.fullmatch(raw.decode("latin-1"))
    query = _QUERY.fullmatch(scope["query_string"].decode("latin-1"))
    if path is None or query is None:
        raise InvalidRequestError(
            "The request's address cannot be passed on: it has dots, slashes or characters that "
            "an upstream might read in another way. Write each segment plainly.",
            code="invalid_path",
        )
    return path[1], query[0]
