"""Structural counts of a request, joined to the encoder's state inside the artifact's graph.

What a request asks for structurally (how many things, of which types, over how many tools, and
whether the query says what the tools need) tells as much of its difficulty as its words.
`training/EXPERIMENTS.md` has what each group of counts is worth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from router_service.core.features.meeting import MEETING, Meeting
from router_service.core.features.text import TEXT, Query
from router_service.core.features.tools import TOOLS, ToolFacts, facts
from router_service.core.messages import Conversation, Role

MAX_QUERY_CHARS = 20_000
"""A longer query is counted up to here: the counts are of sentences, not of documents."""


class View:
    """One conversation as the features see it: the latest user text, the tools, and both."""

    def __init__(self, conversation: Conversation) -> None:
        latest = conversation.latest_user
        text = conversation.turns[latest].text if latest is not None else ""
        self.conversation = conversation
        self.query = Query(text[:MAX_QUERY_CHARS])
        self.tools: tuple[ToolFacts, ...] = tuple(map(facts, conversation.tools))
        self.meeting = Meeting(self.query, self.tools)


def _of_text(count: Callable[[Query], float]) -> Callable[[View], float]:
    return lambda view: count(view.query)


def _of_tools(count: Callable[[tuple[ToolFacts, ...]], float]) -> Callable[[View], float]:
    return lambda view: count(view.tools)


def _of_both(count: Callable[[Meeting], float]) -> Callable[[View], float]:
    return lambda view: count(view.meeting)


FEATURES: dict[str, Callable[[View], float]] = {
    **{name: _of_text(count) for name, count in TEXT.items()},
    **{name: _of_tools(count) for name, count in TOOLS.items()},
    **{name: _of_both(count) for name, count in MEETING.items()},
    "turns": lambda view: len(view.conversation.turns),
    "system_chars": lambda view: sum(
        len(turn.text) for turn in view.conversation.turns if turn.role is Role.SYSTEM
    ),
}
"""Every feature by name. A name's meaning never changes: a changed count gets a new name."""


def extract(conversation: Conversation, names: Sequence[str]) -> tuple[float, ...]:
    """Return the named counts of one conversation, in that order, (len(names),)."""
    view = View(conversation)
    return tuple(float(FEATURES[name](view)) for name in names)
