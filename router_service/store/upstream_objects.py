"""What upstreams store for clients: which deployment holds it, and whose it is."""

from __future__ import annotations

from dataclasses import dataclass

from router_service.settings import ADMIN
from router_service.store.base import UpstreamObject
from router_service.store.guarded import GuardedStore
from router_service.store.local import MemoryStore

MAX_ID_CHARACTERS = 200
"""Longest id that is noted or looked up; OpenAI's have about 60."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """A caller, and what it may see of what upstreams store."""

    caller: str | None
    """Name of its key; None without keys."""
    sees_unowned: bool = True
    """Whether it may use stored objects whose owner this gateway does not know."""

    def sees(self, held: UpstreamObject | None) -> bool:
        """Return whether it may use a stored object; `None` is an object that is not known here."""
        if held is None or held.owner is None:
            return self.sees_unowned
        return self.caller in {held.owner, ADMIN}


class UpstreamObjectIndex:
    """What this process has seen, and behind it what other replicas have seen.

    Requests read local memory only. A request that names an object which another replica has seen
    waits for the shared store, which answers or fails within its short timeout.
    """

    def __init__(
        self, seen: MemoryStore[UpstreamObject], shared: GuardedStore[UpstreamObject] | None = None
    ) -> None:
        """Remember in `seen`; without `shared` nothing else is known."""
        self._seen = seen
        self._shared = shared

    def note(self, held: UpstreamObject) -> None:
        """Remember something stored; the shared store is told in the background.

        Whoever created it stays its owner, even if an upstream gives its id to another key. An id
        that is too long, or has characters that no id has, is not remembered.
        """
        if not 0 < len(held.id) <= MAX_ID_CHARACTERS or not held.id.isprintable():
            return
        known = self._seen.find(held.id)
        if known is not None and known.owner != held.owner:
            return
        self._seen.keep(held)
        if self._shared is not None:
            self._shared.save(held, is_new=known is None)

    def find(self, identifier: str) -> UpstreamObject | None:
        """Return what this process knows of an id; from any thread."""
        return self._seen.find(identifier)

    async def fetch(self, identifier: str) -> UpstreamObject | None:
        """Return what is known of an id, by the shared store if this process does not know it.

        Raises StoreError if that is away.
        """
        held = self.find(identifier)
        if held is None and self._shared is not None and len(identifier) <= MAX_ID_CHARACTERS:
            held = await self._shared.get(identifier)
            if held is not None:
                self._seen.keep(held)
        return held

    async def aclose(self) -> None:
        """Let go of connections."""
        if self._shared is not None:
            await self._shared.aclose()
