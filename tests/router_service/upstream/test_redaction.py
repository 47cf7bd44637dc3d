"""Redaction of credentials that an upstream repeats, in every spelling."""

from __future__ import annotations

import html
import json
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from router_service.upstream.redaction import MARK, Redactor, Secrets, secrets_of

KEY = "sk-proj-Kx81QzPwJw72RtVsUy63"
ODD_KEY = "Kx8/Qz+w=\"<Jw&7>2\\Rt'Vs?Uy63"


def secrets(key: str | None = None) -> Secrets:
    """Return the secrets of a deployment that has some."""
    found = secrets_of("https://h/v1", None if key is None else SecretStr(key))
    assert found is not None
    return found


def relayed(found: Secrets, parts: Sequence[bytes]) -> bytes:
    """Return a body that arrives in parts as it is passed on."""
    redaction = Redactor(found)
    return b"".join([*map(redaction.feed, parts), redaction.end()])


def text(written: str) -> bytes:
    """Return a text in UTF-8."""
    return written.encode()


SPELLINGS: dict[str, Callable[[str], bytes]] = {
    "plain": text,
    "JSON": lambda key: text(json.dumps(key)[1:-1]),
    "JSON of PHP": lambda key: text(json.dumps(key)[1:-1].replace("/", "\\/")),
    "URL": lambda key: text(quote(key, safe="")),
    "HTML": lambda key: text(html.escape(key)),
    "base64": lambda key: b64encode(text(key)),
    "URL-safe base64": lambda key: urlsafe_b64encode(text(key)),
    "base64 of a header": lambda key: b64encode(b"authorization: Bearer " + text(key) + b"\r\n"),
    "base64 of more": lambda key: b64encode(b"a" + text(key) + b"b"),
    "base64 of most": lambda key: b64encode(b"ab" + text(key) + b"c"),
}


@pytest.mark.parametrize("key", [KEY, ODD_KEY, "k\u00e9y-\u4e16-Kx81QzPwJw72"])
@pytest.mark.parametrize("name", SPELLINGS)
def test_every_spelling_is_removed(key: str, name: str) -> None:
    """What remains of a key is too short to be used, however an upstream writes it."""
    spelled = SPELLINGS[name](key)
    clean = relayed(secrets(key), [b'{"error": "bad key: ' + spelled + b'!"}'])
    assert MARK in clean
    assert clean.startswith(b'{"error": "bad key: ')
    assert clean.endswith(b'"}')
    left = max(len(part) for part in clean[20:-2].split(MARK))
    assert left < 32 if "header" in name else left < 8


@pytest.mark.parametrize(
    "key", [None, "", "none", "EMPTY", "ollama", "sk-1234", "lm-studio", "not-needed"]
)
def test_placeholders_are_not_secrets(key: str | None) -> None:
    """Short words would also be found in ordinary answers."""
    secret = None if key is None else SecretStr(key)
    assert secrets_of("https://h/v1", secret) is None


@pytest.mark.parametrize(
    ("key", "ordinary"),
    [
        (KEY, "sk-proj-Kx81"[:-1] + " sk-proj-... SK-PROJ-KX81QZPW"),
        ("sk-ant-api03-Kx81QzPwJw72RtVs", "export ANTHROPIC_API_KEY=sk-ant-api03-..."),
        ("eyJhbGciOiJIUzI1NiJ9.eyJhdWQiOiJ4In0.Kx81Qz", "eyJhbGciOiJIUzI1NiJ9.eyJleHAi"),
    ],
)
def test_public_beginnings_of_keys_are_kept(key: str, ordinary: str) -> None:
    """Documentation and answers contain the beginning that all keys of a provider share."""
    assert relayed(secrets(key), [text(ordinary)]) == text(ordinary)
    assert MARK in relayed(secrets(key), [text(f"{ordinary} {key}")])


SAMPLES = st.lists(
    st.sampled_from(
        [*map(text, (KEY, KEY[:12], KEY[:11], "s", "sk-", KEY[3:], "\n", "x", 2 * KEY)), MARK]
    ),
    max_size=8,
).map(b"".join)


@given(body=SAMPLES, cuts=st.sets(st.integers(0, 200), max_size=20))
def test_the_result_does_not_depend_on_the_parts(body: bytes, cuts: set[int]) -> None:
    """However a body is split, the same bytes are forwarded, without the key."""
    places = sorted(cut for cut in cuts if cut < len(body))
    parts = [body[a:b] for a, b in zip([0, *places], [*places, len(body)], strict=True)]
    clean = relayed(secrets(KEY), parts)
    assert clean == relayed(secrets(KEY), [body])
    assert KEY[:12].encode() not in clean
    assert (clean == body) == (KEY[:12].encode() not in body)
