"""An API key as the gateway knows it once a request is authenticated, without its secret."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Permission(StrEnum):
    """What a key may allow a request to do."""

    CALL = "call"
    """Use the API, and see what the key's own requests did."""
    METRICS = "metrics"
    """Read `/metrics`."""
    ADMIN = "admin"
    """Use everything else, and see the requests of all keys."""


@dataclass(frozen=True, slots=True)
class Key:
    """An API key: its name, and what it may do.

    The value is passed to admission and settlement (`access.hooks`), so a field that is added here,
    such as a team or a limit, is known there.
    """

    name: str | None
    """Name in logs, metrics and records; None if no key is configured or needed."""
    permissions: frozenset[Permission] = frozenset()

    @property
    def is_admin(self) -> bool:
        """Whether the key may see and change what belongs to other keys."""
        return Permission.ADMIN in self.permissions


NO_KEY = Key(None)
"""The key of requests that need none."""
