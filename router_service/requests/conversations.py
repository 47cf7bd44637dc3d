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

from router_service.apis.usage import CHARACTERS_PER_TOKEN
from router_service.core.errors import StoreError
from router_service.policies.caching import ConversationState, NextRequest
from router_service.requests.call import Call
from router_service.requests.parsing import ParsedRequest
from router_service.requests.turns import (
    ConversationTurn,
    conversation_key,
    has_stalled,
    is_in_tool_loop,
)
from router_service.store.memory import MemoryStore
from router_service.store.records import GuardedStore
from router_service.telemetry.metrics import Metrics

MAX_WAIT_S = 0.02
"""Longest wait of a request for the state in Redis, which usually answers within 2 ms."""


class Conversations:
    """The states of conversations, in memory and in the store that replicas share."""

    def __init__(
        self,
        local: MemoryStore[ConversationState],
        shared: GuardedStore[ConversationState] | None,
        metrics: Metrics,
        clock: Callable[[], float] = time.time,
        max_wait_s: float = MAX_WAIT_S,
    ) -> None:
        """Keep states in these stores.

        `clock` returns seconds, the same on all replicas. A request waits at most `max_wait_s` for
        the shared store.
        """
        self._local = local
        self._shared = shared
        self._metrics = metrics
        self._clock = clock
        self._max_wait_s = max_wait_s
        self._reads: set[asyncio.Task[None]] = set()

    async def begin(
        self, request: ParsedRequest, session: str | None, key: str | None
    ) -> ConversationTurn:
        """Return a request's place in its conversation."""
        conversation = request.conversation
        conversation_id = conversation_key(request, session, key)
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
            ),
            turns,
            is_in_tool_loop(conversation),
            has_stalled(conversation),
        )

    def answered(self, call: Call) -> None:
        """Remember which arm has answered a request of a conversation, and what it has cached."""
        plan, usage = call.plan, call.accepted.usage
        turn, decision = plan.conversation, plan.decision
        if turn is None or decision is None or usage is None or call.status >= 400:
            return
        arms = plan.planner.models_by_arm(decision).items()
        arm = next(
            (arm for arm, model in arms if model.name == call.accepted.model.name), decision.arm
        )
        terms = plan.planner.terms
        before = turn.state
        rule = terms[arm].rule if arm in terms else None
        expected_tokens = before.cached_tokens(arm, rule, turn.request.at_s)
        if expected_tokens > 0 and not usage.is_estimated:
            result = "hit" if usage.cached_tokens > 0 else "miss"
            self._metrics.child(self._metrics.conversation_caches, arm, result).inc()
        cost_usd = terms[arm].price.cost_of(usage, call.accepted.seconds) if arm in terms else 0.0
        after = before.after(turn.request, arm, usage, cost_usd, terms)
        after = after.model_copy(update={"turns": turn.turns})
        cost = self._metrics.conversation_cost_usd
        cost.labels("routed").inc(after.spent_usd - before.spent_usd)
        cost.labels("first_arm").inc(after.staying_usd - before.staying_usd)
        self._local.keep(after)
        if self._shared is not None:
            self._shared.save(after)

    async def _find(self, conversation_id: str) -> ConversationState | None:
        """Return the latest state that is known in time."""
        if self._shared is not None:
            read = asyncio.create_task(self._read(self._shared, conversation_id))
            self._reads.add(read)
            read.add_done_callback(self._reads.discard)
            await asyncio.wait([read], timeout=self._max_wait_s)
        return self._local.find(conversation_id)

    async def _read(self, shared: GuardedStore[ConversationState], conversation_id: str) -> None:
        """Copy a state from the shared store, if it is newer than the local one."""
        with suppress(StoreError):
            found, own = await shared.get(conversation_id), self._local.find(conversation_id)
            if found is not None and (own is None or found.last_at_s > own.last_at_s):
                self._local.keep(found)

    async def aclose(self) -> None:
        """Close the shared store's connections."""
        for read in self._reads:
            read.cancel()
        if self._shared is not None:
            await self._shared.aclose()
