"""Which decisions belong to one conversation, so that people can follow its requests."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import ClassVar

from router_service.core.decision_record import StoredRecord
from router_service.core.errors import StoreError
from router_service.requests.call import Call
from router_service.store.records import GuardedStore

MAX_DECISIONS = 50
"""Decisions that are remembered of one conversation; an agent may have hundreds."""


class ConversationDecisions(StoredRecord):
    """The decisions of a conversation."""

    kind: ClassVar[str] = "conversation_decisions"
    max_mean_bytes: ClassVar[int] = 4096

    decisions: tuple[str, ...] = ()
    """Ids of the last decisions, in the order in which their answers ended."""


class ConversationIndex:
    """The decisions of each conversation, in the store that workers and replicas share.

    Of two requests of a conversation that end at the same time in two processes, one may be lost.
    """

    def __init__(self, store: GuardedStore[ConversationDecisions]) -> None:
        """Keep the decisions in this store."""
        self._store = store
        self._tasks: set[asyncio.Task[None]] = set()

    def answered(self, call: Call) -> None:
        """Add a request that has ended to its conversation, in the background."""
        conversation_id = call.plan.conversation_id
        if conversation_id is not None:
            task = asyncio.create_task(self._add(conversation_id, call.decision_id))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def find(self, conversation_id: str | None) -> tuple[str, ...]:
        """Return the ids of a conversation's decisions; none if they are not known."""
        if conversation_id is None:
            return ()
        with suppress(StoreError):
            found = await self._store.get(conversation_id)
            return found.decisions if found else ()
        return ()

    async def _add(self, conversation_id: str, decision_id: str) -> None:
        earlier = await self.find(conversation_id)
        decisions = (*earlier, decision_id)[-MAX_DECISIONS:]
        self._store.save(ConversationDecisions(id=conversation_id, decisions=decisions))

    async def aclose(self) -> None:
        """Finish the writes, and close the store's connections."""
        await asyncio.gather(*self._tasks)
        await self._store.aclose()
