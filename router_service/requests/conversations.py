"""Conversations: which requests belong together, and what earlier ones say about the next one.

The state of a conversation says which arm served it, and how much of it each arm's provider has
cached (see `core.caching`). It is kept in memory, and in Redis if that is configured. A request
waits at most `MAX_WAIT_S` for Redis, and is decided without state if Redis is away.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import dropwhile
from typing import TYPE_CHECKING

from router_service.core.caching import ConversationState, NextRequest
from router_service.core.errors import StoreError
from router_service.core.messages import Conversation, Json, Role, Turn
from router_service.core.tool_checks import is_tool_error
from router_service.store.records import GuardedStore, MemoryStore
from router_service.telemetry.metrics import Metrics
from router_service.upstream.answers import CHARACTERS_PER_TOKEN

if TYPE_CHECKING:
    from router_service.requests.exchange import Exchange
    from router_service.requests.planning import ParsedRequest

MAX_WAIT_S = 0.02
"""Longest wait of a request for the state in Redis, which usually answers within 2 ms."""

MAX_ID_CHARACTERS = 500
"""Longer session ids are ignored. Claude Code's user id, the longest one, has 150 characters."""

SESSION_HEADERS = (
    "x-switchcraft-session-id",
    "x-litellm-session-id",
    "x-claude-code-session-id",
    "thread-id",
    "session-id",
    "session_id",
)
"""Headers that name a conversation, the most specific one first: ours, LiteLLM's, Claude Code's,
and those of the Codex CLI, whose session may have several threads."""


def read_session_header(headers: Mapping[str, str]) -> str | None:
    """Return the name of the conversation in a request's headers, if there is one."""
    for header in SESSION_HEADERS:
        name = headers.get(header)
        if name and len(name) <= MAX_ID_CHARACTERS:
            return name
    return None


def read_session(body: Mapping[str, Json]) -> str | None:
    """Return the name of the conversation in a request's body, if there is one.

    These are LiteLLM's `litellm_session_id` and `metadata.session_id`, Anthropic's
    `metadata.user_id`, in which Claude Code sends its session, and OpenAI's `prompt_cache_key`.
    """
    metadata = body.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    user_id = metadata.get("user_id")
    names = (
        body.get("litellm_session_id"),
        metadata.get("session_id"),
        user_id if isinstance(user_id, str) and "session" in user_id else None,
        body.get("prompt_cache_key"),
    )
    return next(
        (name for name in names if isinstance(name, str) and 0 < len(name) <= MAX_ID_CHARACTERS),
        None,
    )


def conversation_key(request: ParsedRequest, session: str | None, caller: str | None) -> str:
    """Return the id of a request's conversation, the same for all of its requests.

    `session` is the name that the client gives it. Without one, the hash of its opening is used.
    The names of the tools are part of the id, because subagents share their agent's session and
    have other tools; `caller` is part of it, so that API keys do not share conversations.
    """
    named = session or request.session
    facts = (
        caller or "",
        f"session:{named}" if named else request.conversation_id,
        *(tool.name for tool in request.chat.conversation.tools),
    )
    return sha256("\0".join(facts).encode(errors="surrogatepass")).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class ConversationTurn:
    """One request of a conversation, with the state that earlier requests have left."""

    state: ConversationState
    """Without an arm if this is the first request."""
    request: NextRequest
    turns: int
    """Number of messages in the request."""
    is_in_loop: bool
    """Whether the request continues a tool loop."""
    has_stalled: bool
    """Whether the tools' results show that the arm makes no progress."""


def is_in_tool_loop(conversation: Conversation) -> bool:
    """Return whether a request continues a tool loop: it ends with a tool's result.

    Text of the user may follow the result, because Claude Code adds its reminders there.
    """
    return next(_turns_of_loop(conversation), None) is not None


def _turns_of_loop(conversation: Conversation) -> Iterator[Turn]:
    """Yield the turns of the tool loop that a request continues, the last one first."""
    turns = dropwhile(lambda turn: turn.role is Role.USER, reversed(conversation.turns))
    for index, turn in enumerate(turns):
        is_result = turn.role in {Role.TOOL, Role.FUNCTION}
        if not is_result and (index == 0 or not turn.tool_calls):
            return
        yield turn


def has_stalled(conversation: Conversation) -> bool:
    """Return whether the last two rounds of a tool loop show no progress.

    Either all of their results are errors, or the second one repeats the first one's calls and gets
    the same results.
    """
    rounds: list[tuple[object, list[str]]] = []
    results: list[str] = []
    for turn in _turns_of_loop(conversation):
        if turn.tool_calls:
            rounds.append((turn.tool_calls, results))
            results = []
        else:
            results.append(turn.text)
        if len(rounds) == 2:
            is_same = rounds[0] == rounds[1]
            return is_same or all(is_tool_error(text) for _, texts in rounds for text in texts)
    return False


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
        self, request: ParsedRequest, session: str | None, caller: str | None
    ) -> ConversationTurn:
        """Return a request's place in its conversation."""
        conversation = request.chat.conversation
        key = conversation_key(request, session, caller)
        state = await self._find(key)
        turns = len(conversation.turns)
        # A request that is not longer than the last one begins anew: the client has shortened the
        # conversation, or has asked the same question again.
        if state is None or turns <= state.turns:
            state = ConversationState(id=key)
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

    def answered(self, exchange: Exchange) -> None:
        """Remember which arm has answered a request of a conversation, and what it has cached."""
        plan, usage = exchange.plan, exchange.usage
        turn, decision = plan.conversation, plan.decision
        if turn is None or decision is None or usage is None or exchange.status >= 400:
            return
        arms = plan.planner.models_by_arm(decision).items()
        arm = next((arm for arm, model in arms if model.name == exchange.model.name), decision.arm)
        terms = plan.planner.terms
        before = turn.state
        rule = terms[arm].rule if arm in terms else None
        expected_tokens = before.cached_tokens(arm, rule, turn.request.at_s)
        if expected_tokens > 0 and not usage.is_estimated:
            result = "hit" if usage.cached_tokens > 0 else "miss"
            self._metrics.child(self._metrics.conversation_caches, arm, result).inc()
        if before.arm is not None and before.arm != arm:
            self._metrics.child(self._metrics.conversation_switches, arm).inc()
        cost_usd = terms[arm].price.cost_of(usage, exchange.upstream_s) if arm in terms else 0.0
        after = before.after(turn.request, arm, usage, cost_usd, terms)
        after = after.model_copy(update={"turns": turn.turns})
        self._metrics.conversation_cost_usd.inc(after.spent_usd - before.spent_usd)
        self._metrics.conversation_first_arm_cost_usd.inc(after.staying_usd - before.staying_usd)
        self._local.keep(after)
        if self._shared is not None:
            self._shared.save(after)

    async def _find(self, key: str) -> ConversationState | None:
        """Return the latest state that is known in time."""
        if self._shared is not None:
            read = asyncio.create_task(self._read(self._shared, key))
            self._reads.add(read)
            read.add_done_callback(self._reads.discard)
            await asyncio.wait([read], timeout=self._max_wait_s)
        return self._local.find(key)

    async def _read(self, shared: GuardedStore[ConversationState], key: str) -> None:
        """Copy a state from the shared store, if it is newer than the local one."""
        with suppress(StoreError):
            found, own = await shared.get(key), self._local.find(key)
            if found is not None and (own is None or found.last_at_s > own.last_at_s):
                self._local.keep(found)

    async def aclose(self) -> None:
        """Close the shared store's connections."""
        for read in self._reads:
            read.cancel()
        if self._shared is not None:
            await self._shared.aclose()
