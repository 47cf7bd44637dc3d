"""API keys: hashed at rest, compared in constant time, and refused where they can be guessed."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping

HASHED = "sha256:"
"""What a key starts with in the configuration where only its hash is given."""

PREFIX = "sk-switchcraft-"
"""What our own keys start with, so that scanners for leaked secrets know them."""

MIN_LENGTH = 20
MIN_DISTINCT = 10
"""A key with fewer characters, or fewer different ones, was typed by a person."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_PLACEHOLDER = re.compile(
    r"change.?me|password|passwort|secret|example|replace.?(me|this)|master.?key|your.?(api.?)?key"
    r"|letmein|litellm|12345|abcdef|qwerty|<.*>",
    re.IGNORECASE,
)
_EXAMPLES = (
    "sk-1234 sk-12345 sk-123456 sk-1234567890 sk-test sk-key sk-admin sk-master-key sk-secret"
    " changeme change-me secret password admin test key 1234 12345678".split()
)


class KeyRing:
    """Named keys, of which only SHA-256 digests are held.

    SHA-256 without salt or stretching is right here, unlike for passwords: keys are long and
    random, so that there is nothing to guess, and every request is checked.
    """

    def __init__(self, keys: Mapping[str, str]) -> None:
        """Hold keys by name, each plain or as `sha256:HEX`; raises ValueError as `digest_of`."""
        self._digests = {name: digest_of(key) for name, key in keys.items()}

    def __len__(self) -> int:
        return len(self._digests)

    def name_of(self, key: bytes) -> str | None:
        """Return the name of a key, or None; takes as long for a right key as for a wrong one."""
        digest = hashlib.sha256(key).digest()
        found = None
        for name, known in self._digests.items():
            if hmac.compare_digest(known, digest):
                found = name  # no early exit: the time would tell which one it was
        return found


def digest_of(key: str) -> bytes:
    """Return the SHA-256 of a key that is plain, or given as `sha256:` and 64 hexadecimal digits.

    Raises ValueError, which never quotes the key, where it is empty or the hash is malformed.
    """
    text = key.strip()
    if not text.startswith(HASHED):
        if not text:
            raise ValueError("is empty; write a key, or leave it out")
        return hashlib.sha256(text.encode()).digest()
    digest = text.removeprefix(HASHED).lower()
    if not _DIGEST.fullmatch(digest):
        raise ValueError("is not a hash: after 'sha256:' come 64 hexadecimal digits")
    return bytes.fromhex(digest)


def is_weak(key: str) -> bool:
    """Whether a key can be guessed: short, of few characters, or one that documents show.

    Of a hash only the latter can be told.
    """
    text = key.strip()
    if text.startswith(HASHED):
        return digest_of(text) in _EXAMPLE_DIGESTS
    is_typed = len(text) < MIN_LENGTH or len(set(text)) < MIN_DISTINCT
    return is_typed or bool(_PLACEHOLDER.search(text))


def new_key() -> str:
    """Return a random key with 256 bits of entropy."""
    while is_weak(key := PREFIX + secrets.token_urlsafe(32)):
        pass  # one in millions spells a word
    return key


def hashed(key: str) -> str:
    """Return a key as the configuration may hold it: `sha256:HEX`."""
    return HASHED + digest_of(key).hex()


_EXAMPLE_DIGESTS = frozenset(digest_of(key) for key in _EXAMPLES)
