"""Keys that can be guessed are recognized, and malformed ones are refused."""

from __future__ import annotations

import pytest

from router_service.core.keys import digest_of, hashed, is_weak


@pytest.mark.parametrize("key", ["", "  ", "sha256:", "sha256:12", "sha256:" + "g" * 64])
def test_invalid_keys_are_refused(key: str) -> None:
    """The error for an empty key or a malformed hash does not quote it."""
    with pytest.raises(ValueError, match=r"^is (empty|not a valid hash)"):
        digest_of(key)


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
