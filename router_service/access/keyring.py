"""The keys of a configuration, stored as hashes and compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from router_service.access.key import Key, Permission
from router_service.core.keys import digest_of
from router_service.settings import ADMIN, METRICS, KeySettings


class KeyRing:
    """Keys with the SHA-256 digests of their secrets.

    Salt and key stretching, which passwords need, are not used: secrets are long and random, so
    that they cannot be guessed, and stretching would slow down every request.
    """

    def __init__(self, keys: Iterable[tuple[str, Key]]) -> None:
        """Store keys with their secrets, each in plain text or as `sha256:HEX`.

        Raise ValueError as `digest_of` does.
        """
        self._keys = [(digest_of(secret), key) for secret, key in keys]
        self.is_open = not self._keys
        """True if no key is configured; every client that can connect is then allowed."""

    @classmethod
    def from_settings(cls, settings: KeySettings) -> KeyRing:
        """Return the keys of a configuration."""
        client = frozenset({Permission.CALL})
        keys = [
            (secret.get_secret_value(), Key(name, client)) for name, secret in settings.api.items()
        ]
        if settings.metrics is not None:
            scraper = Key(METRICS, frozenset({Permission.METRICS}))
            keys.append((settings.metrics.get_secret_value(), scraper))
        if settings.admin is not None:  # the last one, so that it precedes an API key that is equal
            keys.append((settings.admin.get_secret_value(), Key(ADMIN, frozenset(Permission))))
        return cls(keys)

    def find(self, secret: bytes, permission: Permission) -> Key | None:
        """Return the key with this secret and permission, in a time independent of the secret."""
        digest = hashlib.sha256(secret).digest()
        found = None
        for known, key in self._keys:
            if hmac.compare_digest(known, digest) and permission in key.permissions:
                found = key  # no early exit, because the time would reveal which key it was
        return found
