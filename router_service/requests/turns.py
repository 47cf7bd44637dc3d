"""A request's place in its conversation, and whether its tool loop makes progress."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import dropwhile

from router_service.apis.conversation import Conversation, Role, Turn
from router_service.checker.tool_checks import is_tool_error
from router_service.policies.caching import ConversationState, NextRequest
from router_service.requests.parsing import ParsedRequest


def conversation_key(request: ParsedRequest, session: str | None, key: str | None) -> str:
    """Return the id of a request's conversation, the same for all of its requests.

    `session` is the name that the client gives it. Without one, the hash of its opening is used.
    The names of the tools are part of the id, because subagents share their agent's session and
    have other tools; the name of the API key is part of it, so that keys share no conversation.
    """
    named = session or request.session
    facts = (
        key or "",
        f"session:{named}" if named else request.conversation_id,
        *(tool.name for tool in request.conversation.tools),
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
