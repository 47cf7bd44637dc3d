"""Structural features of a request, which the artifact's graph reads beside the token ids.

The structure of a request says as much about its difficulty as its words: how many things it asks
for, their types, the number of tools, and whether the query contains what the tools need.
`training/EXPERIMENTS.md` measures each group of features.
"""

from __future__ import annotations

from collections.abc import Sequence

from router_service.core.cache import Cache
from router_service.core.features.overlap import OVERLAP_FEATURES, overlap_features
from router_service.core.features.text import TEXT_FEATURES, Query, analyze_query
from router_service.core.features.tools import TOOL_FEATURES, Toolset, analyze_tools
from router_service.core.messages import Conversation, Role, ToolSpec

FEATURES = (*TEXT_FEATURES, *TOOL_FEATURES, *OVERLAP_FEATURES, "turns", "system_chars")
"""Names of all features. The meaning of a name never changes: a changed feature gets a new name."""

MAX_QUERY_CHARS = 20_000
"""Characters of the query that are read: the features describe sentences, not documents."""

_QUERY_CHAR_BYTES = 60
_ENTRY_BYTES = 10_000
"""Upper bounds of the memory that a query takes for each character, and that an entry of the
caches below takes besides."""

# These caches belong to the process and not to a router, because their values depend only on their
# keys: all releases of an artifact that are loaded share them.
_queries: Cache[str, Query] = Cache(max_bytes=4 * 2**20)
"""While an agent works on a task, all its requests have the same latest user text. Analyzing one
takes 0.3 ms."""
_toolsets: Cache[tuple[ToolSpec, ...], Toolset] = Cache(max_bytes=8 * 2**20)
"""Analyzing 20 tools takes 1 ms."""


def extract(conversation: Conversation, names: Sequence[str]) -> tuple[float, ...]:
    """Return the named features of a conversation in that order, (len(names),)."""
    if not names:
        return ()
    latest = conversation.latest_user
    text = conversation.turns[latest].text[:MAX_QUERY_CHARS] if latest is not None else ""
    query = _queries.get(text)
    if query is None:
        query = analyze_query(text)
        _queries.put(text, query, size_bytes=_ENTRY_BYTES + _QUERY_CHAR_BYTES * len(text))
    toolset = _toolsets.get(conversation.tools)
    if toolset is None:
        toolset = analyze_tools(conversation.tools)
        _toolsets.put(conversation.tools, toolset, size_bytes=_ENTRY_BYTES + toolset.size_bytes)
    system = [turn.text for turn in conversation.turns if turn.role is Role.SYSTEM]
    features = {
        **query.features,
        **toolset.features,
        **overlap_features(query, toolset),
        "turns": len(conversation.turns),
        "system_chars": sum(map(len, system)),
    }
    return tuple([float(features[name]) for name in names])
