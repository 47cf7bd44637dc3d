"""Validates the path and query of a request that is passed through to an upstream.

An upstream may interpret a URL differently than this gateway does: it may decode it twice, read
overlong UTF-8 as a dot, normalize other scripts' dots and slashes, ignore everything after a `;`,
or strip dots and spaces from the end of a segment. The gateway refuses everything that any upstream
could interpret as a dot segment, a slash or the end of the path. Ids such as
`ft:gpt-4o-mini:org::id`, `file-abc%3Ax` and `@cf/meta/llama-3.1` are accepted.
"""

from __future__ import annotations

import re
import unicodedata
from urllib.parse import unquote_to_bytes

from starlette.types import Scope

from router_service.core.errors import InvalidRequestError

PREFIX = "/v1"

# Segments of RFC 3986, section 3.3, without `;`, which begins a path parameter for some servers,
# and without a dot at the start, which no id has.
_PLAIN = r"[A-Za-z0-9_~!$&'()*+,=:@-]"
_ENCODED = r"%[0-9A-Fa-f]{2}"
_SEGMENT = rf"(?!\+*\.)(?:{_PLAIN}|{_ENCODED})(?:{_PLAIN}|{_ENCODED}|\.)*"
_PATH = re.compile(rf"/v1((?:/{_SEGMENT})+)", re.ASCII)
_QUERY = re.compile(rf"(?:[A-Za-z0-9._~!$&'()*+,;=:@/?\[\]-]|(?!%0[0aAdD]){_ENCODED})*", re.ASCII)

_ESCAPES = re.compile(rf"(?:{_ENCODED})+", re.ASCII)
_ENCODABLE = re.compile(r"[A-Za-z0-9 !\"$&'()*+,:<=>@\[\]^_`{|}~-]", re.ASCII)
"""ASCII characters that may be percent-encoded in a segment: none of them would end or split the
path if it were decoded once more."""


def upstream_path(scope: Scope) -> tuple[str, str]:
    """Return the path below `/v1` and the query, as the client wrote them.

    Raises InvalidRequestError if they could lead outside of the upstream's base URL.
    """
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    path = _PATH.fullmatch(raw.decode("latin-1"))
    query = _QUERY.fullmatch(scope["query_string"].decode("latin-1"))
    if (
        path is None
        or query is None
        or ("%" in path[1] and not all(map(_is_unambiguous, path[1].split("/"))))
    ):
        raise InvalidRequestError(
            "The request's path or query cannot be passed through: it contains dots, slashes or "
            "characters that an upstream may interpret differently. Write each segment without "
            "percent-encoded separators.",
            code="invalid_path",
        )
    return path[1], query[0]


def segments_of(path: str) -> tuple[str, ...]:
    """Return the decoded segments of a path that `upstream_path` returned."""
    return tuple(unquote_to_bytes(segment).decode() for segment in path.split("/")[1:])


def _is_unambiguous(segment: str) -> bool:
    """Return whether every upstream decodes a segment to the same text."""
    if "%" not in segment:
        return True
    try:
        text = unquote_to_bytes(segment).decode()
        encoded = "".join(unquote_to_bytes(run).decode() for run in _ESCAPES.findall(segment))
    except UnicodeDecodeError:  # some servers read `%c0%ae`, overlong UTF-8, as a dot
        return False
    is_trimmed = text == text.strip() and not text.strip("+ ").startswith(".")
    if not is_trimmed:
        return False
    for character in encoded:
        if character.isascii():
            if not _ENCODABLE.match(character):
                return False
            continue
        # No normalized form of the character may be a separator.
        forms = character + unicodedata.normalize("NFKC", character)
        if not all(form.isalnum() or unicodedata.category(form)[0] == "M" for form in forms):
            return False
    return True
