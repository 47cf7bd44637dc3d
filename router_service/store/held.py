"""Which deployment holds which response: what goes on from one must be asked of that one."""

from __future__ import annotations

from router_service.core.errors import ResponseNotFoundError
from router_service.core.messages import Reference
from router_service.store.base import HeldResponse
from router_service.store.guarded import GuardedStore
from router_service.store.memory import MemoryStore

MAX_ID_CHARACTERS = 200
"""Longest id that is looked up; OpenAI's have about 60."""


class HeldResponses:
    """What this process has seen, and behind it what other replicas have seen.

    Requests read memory alone. Only one that goes on from a response that another replica relayed
    waits for the shared store, which answers or fails within its short timeout.
    """

    def __init__(
        self, seen: MemoryStore[HeldResponse], shared: GuardedStore[HeldResponse] | None = None
    ) -> None:
        """Remember in `seen`; without `shared` nothing else is known."""
        self._seen = seen
        self._shared = shared

    def note(self, response_id: str, model: str, deployment_id: str) -> None:
        """Remember who holds a response; the shared store is told in the background."""
        held = HeldResponse(id=response_id, model=model, deployment_id=deployment_id)
        self._seen.keep(held)
        if self._shared is not None:
            self._shared.save(held)

    def find(self, response_id: str) -> HeldResponse | None:
        """Return who holds a response, as far as this process knows; from any thread."""
        return self._seen.find(response_id)

    def seen(self, reference: Reference) -> HeldResponse:
        """Return who holds what a request goes on from; raises ResponseNotFoundError.

        May be called from any thread.
        """
        held = self.find(reference.id)
        if held is None:
            raise ResponseNotFoundError(reference.id, param=reference.param)
        return held

    async def fetch(self, response_id: str) -> HeldResponse | None:
        """Return who holds a response, from the shared store where it is not known here.

        Raises StoreError where that is away.
        """
        held = self.find(response_id)
        if held is None and self._shared is not None and len(response_id) <= MAX_ID_CHARACTERS:
            held = await self._shared.get(response_id)
            if held is not None:
                self._seen.keep(held)
        return held

    async def aclose(self) -> None:
        """Let go of connections."""
        if self._shared is not None:
            await self._shared.aclose()
