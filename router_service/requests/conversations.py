"""Conversations: which requests belong together, and what earlier ones say about the next one.

The state of a conversation says which arm served it, and how much of it each arm's provider has
cached (see `policies.caching`). It is kept in memory, and in Redis if that is configured. A request
waits at most `MAX_WAIT_S` for Redis, and is decided without state if Redis is away.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from router_service.apis.conversation import Role
from router_service.apis.usage import CHARACTERS_PER_TOKEN
from router_service.core.errors import StoreError
from router_service.policies.caching import ConversationState, NextRequest
from router_service.requests.call import Call
from router_service.requests.candidates import Candidate
from router_service.requests.parsing import ParsedRequest
from router_service.requests.planning import Plan
from router_service.requests.turns import ConversationTurn, is_in_tool_loop
from router_service.router import Decision
from router_service.store.memory import LocalRecords
from router_service.store.records import Records

MAX_WAIT_S = 0.02
"""Longest wait of a request for the state in Redis, which usually answers within 2 ms."""


class Conversations:
    """The states of conversations, in memory and in the store that replicas share."""

    def __init__(
        self,
        local: LocalRecords[ConversationState],
        shared: Records[ConversationState] | None,
        clock: Callable[[], float] = time.time,
        max_wait_s: float = MAX_WAIT_S,
    ) -> None:
        """Keep states in these stores.

        `clock` returns seconds, the same on all replicas. A request waits at most `max_wait_s` for
        the shared store.
        """
        self._local = local
        self._shared = shared
        self._clock = clock
        self._max_wait_s = max_wait_s
        self._reads: set[asyncio.Task[None]] = set()

    async def begin(self, request: ParsedRequest, conversation_id: str) -> ConversationTurn:
        """Return a request's place in its conversation."""
        conversation, state = request.conversation, None
        # Without an earlier answer, no time is spent on looking for what it has left.
        if any(turn.role is Role.ASSISTANT for turn in conversation.turns):
            state = await self._find(conversation_id)
        turns = len(conversation.turns)
        # A request that is not longer than the last one begins anew: the client has shortened the
        # conversation, or has asked the same question again.
        if state is None or turns <= state.turns:
            state = ConversationState(id=conversation_id)
        size_bytes = request.body.size_bytes
        tokens_per_byte = 1 / CHARACTERS_PER_TOKEN
        if state.request_bytes > 0:
            tokens_per_byte = state.prompt_tokens / state.request_bytes
        return ConversationTurn(
            state,
            NextRequest(
                prompt_tokens=size_bytes * tokens_per_byte,
                at_s=self._clock(),
                has_markers=request.has_cache_markers,
                size_bytes=size_bytes,
                turns=turns,
            ),
            is_in_tool_loop(conversation),
        )

    def answered(self, call: Call) -> None:
        """Remember which arm has answered a request of a conversation, and what all have cached."""
        plan, accepted = call.plan, call.accepted
        turn, decision = plan.conversation, plan.decision
        if turn is None or decision is None or accepted.usage is None or call.status >= 400:
            return
        terms, after, request = plan.planner.terms, turn.state, turn.request
        for candidate in call.candidates:
            arm, usage = self._arm_of(candidate, plan, decision), candidate.usage
            if usage is not None and arm in terms and candidate is not accepted:
                after = after.warmed(request, arm, usage, terms[arm].rule)
        for arm, candidate in call.asked.items():
            is_escalated = candidate.step < call.verification_steps
            after = after.after_asked(arm, is_escalated=is_escalated)
        arm = self._arm_of(accepted, plan, decision)
        rule = terms[arm].rule if arm in terms else None
        after = after.after(request, arm, accepted.usage, rule)
        self._local.keep(after)
        if self._shared is not None:
            self._shared.save(after)

    @staticmethod
    def _arm_of(candidate: Candidate, plan: Plan, decision: Decision) -> str:
        """Return the arm whose model has answered, or the chosen one if none is known."""
        if candidate.arm is not None:
            return candidate.arm
        models = plan.planner.models_by_arm(decision)
        answered = (arm for arm, model in models.items() if model.name == candidate.model.name)
        return next(answered, decision.arm)

    async def _find(self, conversation_id: str) -> ConversationState | None:
        """Return the latest state that is known in time."""
        if self._shared is not None:
            read = asyncio.create_task(self._read(self._shared, conversation_id))
            self._reads.add(read)
            read.add_done_callback(self._reads.discard)
            await asyncio.wait([read], timeout=self._max_wait_s)
        return self._local.find(conversation_id)

    async def _read(self, shared: Records[ConversationState], conversation_id: str) -> None:
        """Copy a state from the shared store, if it is newer than the local one."""
        with suppress(StoreError):
            found, own = await shared.get(conversation_id), self._local.find(conversation_id)
            if found is not None and (own is None or found.last_at_s > own.last_at_s):
                self._local.keep(found)

    async def aclose(self) -> None:
        """End the reads, and finish the writes to the shared store."""
        for read in self._reads:
            read.cancel()
        if self._shared is not None:
            await self._shared.drain()
