"""Structural counts of a request, joined to the encoder's state inside the artifact's graph.

What a request asks for structurally (how many things, of which types, over how many tools, and
whether the query says what the tools need) tells as much of its difficulty as its words.
`training/EXPERIMENTS.md` has what each group of counts is worth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

from router_service.core.cache import Cache
from router_service.core.features.meeting import MEETING, Meeting
from router_service.core.features.text import TEXT, Query
from router_service.core.features.tools import TOOLS, Toolset
from router_service.core.messages import Conversation, Role, ToolSpec

MAX_QUERY_CHARS = 20_000
"""A longer query is counted up to here: the counts are of sentences, not of documents."""

_QUERY_CHAR_BYTES = 60
_COUNTS_BYTES = 10_000
"""Memory that a query takes by its length, apart and as counts: at most about so much."""

S = TypeVar("S")


class Counted(dict[str, float], Generic[S]):
    """A subject and what was counted of it so far, by name; counts when it is first asked."""

    def __init__(self, subject: S, counts: Mapping[str, Callable[[S], float]]) -> None:
        super().__init__()
        self.subject = subject
        self._counts = counts

    def __missing__(self, name: str) -> float:
        """Count what nobody has asked for yet."""
        value = self[name] = float(self._counts[name](self.subject))
        return value


_queries: Cache[str, Counted[Query]] = Cache(max_bytes=4 * 2**20)
"""While an agent works on a request, each of its turns has the same latest user text: all counts
of one take 0.3 ms."""
_toolsets: Cache[tuple[ToolSpec, ...], Counted[Toolset]] = Cache(max_bytes=8 * 2**20)
"""The counts of 20 tools take 1 ms, most of it to take them apart."""


class View:
    """One conversation as the features see it: the latest user text, the tools, and both."""

    def __init__(self, conversation: Conversation) -> None:
        latest = conversation.latest_user
        text = conversation.turns[latest].text if latest is not None else ""
        self.conversation = conversation
        self.query = _query(text[:MAX_QUERY_CHARS])
        self.tools = _toolset(conversation.tools)
        self.meeting = Meeting(self.query.subject, self.tools.subject)


def _query(text: str) -> Counted[Query]:
    found = _queries.get(text)
    if found is None:
        found = Counted(Query(text), TEXT)
        _queries.put(text, found, size_bytes=_COUNTS_BYTES + _QUERY_CHAR_BYTES * len(text))
    return found


def _toolset(tools: tuple[ToolSpec, ...]) -> Counted[Toolset]:
    found = _toolsets.get(tools)
    if found is None:
        found = Counted(Toolset(tools), TOOLS)
        _toolsets.put(tools, found, size_bytes=_COUNTS_BYTES + found.subject.size_bytes)
    return found


def _of_text(name: str) -> Callable[[View], float]:
    return lambda view: view.query[name]


def _of_tools(name: str) -> Callable[[View], float]:
    return lambda view: view.tools[name]


def _of_both(count: Callable[[Meeting], float]) -> Callable[[View], float]:
    return lambda view: count(view.meeting)


FEATURES: dict[str, Callable[[View], float]] = {
    **{name: _of_text(name) for name in TEXT},
    **{name: _of_tools(name) for name in TOOLS},
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
