"""A request's place in its conversation."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from itertools import dropwhile

from router_service.apis.conversation import Conversation, Role
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
    is_in_loop: bool
    """Whether the request continues a tool loop."""


def is_in_tool_loop(conversation: Conversation) -> bool:
    """Return whether a request continues a tool loop: it ends with a tool's result.

    Text of the user may follow the result, because Claude Code adds its reminders there.
    """
    turns = dropwhile(lambda turn: turn.role is Role.USER, reversed(conversation.turns))
    last = next(turns, None)
    return last is not None and last.role in {Role.TOOL, Role.FUNCTION}
