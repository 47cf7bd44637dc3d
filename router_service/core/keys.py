"""Secrets of API keys: their hashes, whether they can be guessed, and how text hides them."""

from __future__ import annotations

import hashlib
import re
import secrets

HASHED = "sha256:"
"""Prefix of a hash that stands for a key in the configuration."""

PREFIX = "sk-switchcraft-"
"""Prefix of keys that we generate, so that scanners for leaked secrets recognize them."""

MIN_LENGTH = 20
MIN_DISTINCT = 10
"""A key with fewer characters, or fewer different ones, was probably typed by a person."""

HIDDEN = "[hidden]"
"""What messages have in place of something that may be a key."""

MIXED_LENGTH = 16
"""Mixed letters and digits of this length, without a separator, may be a key. Names of models have
shorter ones."""

RANDOM_LENGTH, RANDOM_CHANGES = 32, 14
"""Text of this length may be a key if it changes so often between capitals, small letters and
digits."""

_TOKEN = re.compile(r"[A-Za-z0-9_+=-]{8,}")
_KINDS = re.compile(r"[A-Z]+|[a-z]+|[0-9]+")
_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE)
_KEY_PREFIX = re.compile(
    r"(?:sk|xai|gsk|csk|ghp|gho|nvapi|glpat|xox[abp])[-_][A-Za-z0-9_-]{5,}|hf_[A-Za-z]{20}"
    r"|AIza|AKIA|ya29|eyJ"
)
"""How keys of providers begin."""

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


def digest_of(key: str) -> bytes:
    """Return the SHA-256 digest of a key in plain text, or the digest that `sha256:HEX` contains.

    Raise ValueError if the key is empty or the hash malformed. Its message never quotes the key.
    """
    text = key.strip()
    if not text.startswith(HASHED):
        if not text:
            raise ValueError("is empty; set a key, or remove it")
        return hashlib.sha256(text.encode()).digest()
    digest = text.removeprefix(HASHED).lower()
    if not _DIGEST.fullmatch(digest):
        raise ValueError("is not a valid hash; write 64 hexadecimal digits after 'sha256:'")
    return bytes.fromhex(digest)


def is_weak(key: str) -> bool:
    """Return whether a key can be guessed, because it is short, repetitive or an example.

    A hash counts as weak only if it is the hash of an example.
    """
    text = key.strip()
    if text.startswith(HASHED):
        return digest_of(text) in _EXAMPLE_DIGESTS
    is_typed = len(text) < MIN_LENGTH or len(set(text)) < MIN_DISTINCT
    return is_typed or bool(_PLACEHOLDER.search(text))


def new_key() -> str:
    """Return a random key with 256 bits of entropy."""
    while is_weak(key := PREFIX + secrets.token_urlsafe(32)):
        pass  # one in millions contains a placeholder word
    return key


def hashed(key: str) -> str:
    """Return a key's hash in the configuration's format, `sha256:HEX`."""
    return HASHED + digest_of(key).hex()


def without_keys(text: str) -> str:
    """Return a message in which everything that may be a key is replaced by `HIDDEN`.

    For text of a configuration, in which a key may stand in any place: as a name, too. Names of
    models and dates in them stay readable.
    """
    return _TOKEN.sub(lambda found: HIDDEN if _may_be_key(found[0]) else found[0], text)


def begins_like_key(name: str) -> bool:
    """Return whether a name begins as providers' keys do."""
    return bool(_KEY_PREFIX.match(name))


def _may_be_key(token: str) -> bool:
    if begins_like_key(token) or _UUID.fullmatch(token):
        return True
    parts = [part for part in re.split(r"[^A-Za-z0-9]", token) if part]
    is_mixed = any(
        len(part) >= MIXED_LENGTH and not part.isalpha() and not part.isdigit() for part in parts
    )
    # In random text, every other character is of another kind than the one before.
    changes = sum(len(_KINDS.findall(part)) - 1 for part in parts)
    return is_mixed or (len(token) >= RANDOM_LENGTH and changes >= RANDOM_CHANGES)


_EXAMPLE_DIGESTS = frozenset(digest_of(key) for key in _EXAMPLES)
"""Digests of keys that documentation shows."""
