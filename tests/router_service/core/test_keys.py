"""Keys are identified by their hashes, and keys that can be guessed are recognized."""

from __future__ import annotations

import hashlib

import pytest

from router_service.core.keys import KeyRing, hashed, is_weak, new_key

KEY = "sk-switchcraft-Xv3kQ9pLw2ZrT7bNc5Hy"


def test_a_key_is_found_by_its_hash() -> None:
    """A key in plain text and one given as a hash are found, and parts of them are not."""
    ring = KeyRing({"a": new_key(), "plain": KEY, "z": new_key()})
    assert ring.name_of(KEY.encode()) == "plain"
    assert KeyRing({"h": hashed(KEY)}).name_of(KEY.encode()) == "h"
    for wrong in (b"", KEY[:-1].encode(), KEY.encode() + b"x", hashed(KEY).encode(), b"\xff"):
        assert ring.name_of(wrong) is None
    assert KeyRing({}).name_of(KEY.encode()) is None


def test_a_ring_holds_only_hashes() -> None:
    """No key is kept in plain text."""
    assert KEY not in repr(vars(KeyRing({"a": KEY})))
    assert hashed(KEY) == "sha256:" + hashlib.sha256(KEY.encode()).hexdigest()


@pytest.mark.parametrize("key", ["", "  ", "sha256:", "sha256:12", "sha256:" + "g" * 64])
def test_invalid_keys_are_refused(key: str) -> None:
    """The error for an empty key or a malformed hash does not quote it."""
    with pytest.raises(ValueError, match=r"^is (empty|not a valid hash)"):
        KeyRing({"a": key})


@pytest.mark.parametrize(
    "key",
    [
        "sk-1234",
        "sk-12345678901234567890",
        "changeme-changeme-changeme-1",
        "a" * 64,
        "sk-ababababababababababababab",
        "my-super-secret-litellm-master-key",
        "Password-of-the-gateway-2024",
        "<your key, from the dashboard>",
        hashed("sk-1234"),
    ],
)
def test_guessable_keys_are_weak(key: str) -> None:
    """Short, repetitive and documented keys are weak, hashed ones too."""
    assert is_weak(key)


def test_new_keys_are_strong() -> None:
    """A new key is never weak, and never the same as another."""
    keys = {new_key() for _ in range(200)}
    assert len(keys) == 200
    assert not any(is_weak(key) or is_weak(hashed(key)) for key in keys)
