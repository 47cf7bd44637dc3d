"""Keys are told apart by their hashes, and those that can be guessed are known as such."""

from __future__ import annotations

import hashlib

import pytest

from router_service.core.keys import KeyRing, hashed, is_weak, new_key

KEY = "sk-switchcraft-Xv3kQ9pLw2ZrT7bNc5Hy"


def test_a_key_is_known_by_its_name() -> None:
    """A key is found as it is and by its hash, under its own name; no part of it is enough."""
    ring = KeyRing({"a": new_key(), "plain": KEY, "z": new_key()})
    assert ring.name_of(KEY.encode()) == "plain"
    assert KeyRing({"h": hashed(KEY)}).name_of(KEY.encode()) == "h"
    for wrong in (b"", KEY[:-1].encode(), KEY.encode() + b"x", hashed(KEY).encode(), b"\xff"):
        assert ring.name_of(wrong) is None
    assert KeyRing({}).name_of(KEY.encode()) is None


def test_a_ring_holds_no_key() -> None:
    """What is kept of a key is its hash."""
    assert KEY not in repr(vars(KeyRing({"a": KEY})))
    assert hashed(KEY) == "sha256:" + hashlib.sha256(KEY.encode()).hexdigest()


@pytest.mark.parametrize("key", ["", "  ", "sha256:", "sha256:12", "sha256:" + "g" * 64])
def test_what_is_no_key_is_refused(key: str) -> None:
    """An empty key, or a hash that is none, is an error that does not quote it."""
    with pytest.raises(ValueError, match=r"^is (empty|not a hash)"):
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
def test_keys_that_can_be_guessed(key: str) -> None:
    """Short and monotonous keys are weak, and those that documents show, hashed ones too."""
    assert is_weak(key)


def test_new_keys_are_strong() -> None:
    """A new key is never weak, nor the same as another."""
    keys = {new_key() for _ in range(200)}
    assert len(keys) == 200
    assert not any(is_weak(key) or is_weak(hashed(key)) for key in keys)
