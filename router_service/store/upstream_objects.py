"""Objects that upstreams store for clients: which deployment stores them, and who owns them."""

from __future__ import annotations

from dataclasses import dataclass

from router_service.settings import ADMIN
from router_service.store.base import UpstreamObject
from router_service.store.guarded import GuardedStore
from router_service.store.local import MemoryStore

MAX_ID_CHARACTERS = 200
"""Longest id that is remembered or looked up. OpenAI's have about 60."""


@dataclass(frozen=True, slots=True)
class ObjectAccess:
    """The access of one caller to objects that upstreams store."""

    caller: str | None
    """Name of the caller's key, or None without keys."""
    sees_unowned: bool = True
    """Whether the caller may use objects whose owner is unknown."""

    def sees(self, stored: UpstreamObject | None) -> bool:
        """Return whether the caller may use an object. Pass None for an unknown object."""
        if stored is None or stored.owner is None:
            return self.sees_unowned
        return self.caller in {stored.owner, ADMIN}


class UpstreamObjectIndex:
    """Index of the objects that this process, or another replica, has seen.

    Requests read only local memory. A request that names an object of another replica waits for the
    shared store, which answers or fails within its short timeout.
    """

    def __init__(
        self,
        local: MemoryStore[UpstreamObject],
        shared: GuardedStore[UpstreamObject] | None = None,
    ) -> None:
        self._local = local
        self._shared = shared

    def remember(self, stored: UpstreamObject) -> None:
        """Remember an object, and write it to the shared store in the background.

        The first owner stays the owner, even if an upstream returns the id to another key. Ids that
        are too long or not printable are ignored.
        """
        if not 0 < len(stored.id) <= MAX_ID_CHARACTERS or not stored.id.isprintable():
            return
        known = self._local.find(stored.id)
        if known is not None and known.owner != stored.owner:
            return
        self._local.keep(stored)
        if self._shared is not None:
            self._shared.save(stored, is_new=known is None)

    def find(self, identifier: str) -> UpstreamObject | None:
        """Return an object that this process knows. This may be called from any thread."""
        return self._local.find(identifier)

    async def fetch(self, identifier: str) -> UpstreamObject | None:
        """Return an object from this process or from the shared store.

        Raise StoreError if the shared store is needed and unreachable.
        """
        stored = self.find(identifier)
        if stored is None and self._shared is not None and len(identifier) <= MAX_ID_CHARACTERS:
            stored = await self._shared.get(identifier)
            if stored is not None:
                self._local.keep(stored)
        return stored

    async def aclose(self) -> None:
        """Close the shared store's connections."""
        if self._shared is not None:
            await self._shared.aclose()
