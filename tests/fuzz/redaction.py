"""The gateway's own credentials never reach the client, whatever an upstream repeats of them.

Each input is an answer's body.
"""

from __future__ import annotations

import html
import json
from base64 import b64encode
from collections.abc import Sequence
from urllib.parse import quote

from pydantic import SecretStr

from router_service.settings import Deployment
from router_service.upstream.redaction import MARK, PREFIX_CHARACTERS, Redactor, secrets_of
from tests.fuzz.mutation import of_lines
from tests.fuzz.target import Target, expect, held_bytes, randomness, splits

KEY = 'sk-sk-sk-"+/<a>&b\\sk-sk-0123456789'
"""It starts with its own beginning, and each of the escapes changes it."""

PASSWORD = "password-of-the-proxy"

DEPLOYMENT = Deployment(
    upstream_model="m", base_url=f"https://user:{PASSWORD}@a/v1", api_key=SecretStr(KEY)
)
MAX_HELD_BYTES = 64 * 1024


def _spellings(text: str) -> Sequence[bytes]:
    words = (
        text,
        json.dumps(text)[1:-1],
        quote(text, safe=""),
        html.escape(text),
        b64encode(text.encode()).decode(),
        b64encode(f"Bearer {text}".encode()).decode(),
    )
    return [word.encode() for word in words]


SPELLED = (*_spellings(KEY), *_spellings(PASSWORD))
SECRETS = tuple(
    spelled[:PREFIX_CHARACTERS] for text in (KEY, PASSWORD) for spelled in _spellings(text)[:1]
)


def check(data: bytes) -> None:
    """Check that a body is relayed without secrets, and otherwise unchanged."""
    secrets = secrets_of(DEPLOYMENT.base_url, DEPLOYMENT.api_key)
    assert secrets is not None
    first: bytes | None = None
    for parts in splits(data, randomness(data)):
        redaction = Redactor(secrets)
        passed_on = [redaction.feed(part) for part in parts]
        kept_bytes = held_bytes(redaction, apart_from=(secrets, KEY))
        expect(kept_bytes <= MAX_HELD_BYTES, f"{kept_bytes} bytes are held back")
        clean = b"".join((*passed_on, redaction.end()))
        first = clean if first is None else first
        expect(clean == first, f"the answer depends on how it is cut: {first!r} or {clean!r}")
        for secret in (*SECRETS, *SPELLED):
            expect(secret not in clean, f"{secret!r} is passed on in {clean!r}")
        _check_rest(data, clean)
        expect(redaction.has_found or clean == data, f"{data!r} was changed into {clean!r}")
        whole = secrets.redacted(data)
        expect(not secrets.found_in(whole), f"a secret is left in {whole!r}")


def _check_rest(data: bytes, clean: bytes) -> None:
    """Check that the rest occurs in the body in the same order."""
    place = 0
    for part in clean.split(MARK):
        found = data.find(part, place)
        expect(found >= 0, f"{data!r} became {clean!r}")
        place = found + len(part)


TOKENS = (
    *SPELLED,
    *(spelled[: len(spelled) // 2] for spelled in SPELLED),
    *(spelled[:PREFIX_CHARACTERS] for spelled in SPELLED),
    *(spelled[: PREFIX_CHARACTERS - 1] for spelled in SPELLED),
    b"sk-",
    b"Bearer ",
    b'{"error":"',
    b'"}',
    b"[redacted]",
    b"\\u002B",
    b"\\/",
)

TARGET = Target(
    name="redaction",
    check=check,
    mutate=of_lines(TOKENS),
    tokens=TOKENS,
    measured=("router_service/upstream/redaction.py",),
    max_bytes=256,
    runs=400,
)
