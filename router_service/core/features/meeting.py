"""Counts of how a query meets its tools: whether one fits, and the query says what it needs."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from functools import cached_property
from itertools import combinations
from typing import NamedTuple

from router_service.core.features.text import Query
from router_service.core.features.tools import ToolFacts, Toolset, facts
from router_service.core.features.words import jaccard, overlap
from router_service.core.messages import ToolSpec

MAX_TOOLS_BY_CLAUSE = 32
"""Tools that each clause is held against."""

CLAUSE_FITS_FROM = 0.25
"""Share of a clause's words that a tool must know to be what the clause is about."""

NEAR_BEST = 0.6

MAX_SCANNED = 1_000_000
"""Enum values times characters of the query. Up to here, `in` looks for each value: that takes 0.1
to 1 ns per character, and 50 ns if value and query repeat the same letters. Beyond it, the query is
indexed first."""
WINDOW_CHARS = 256

_NO_TOOL = facts(ToolSpec(""))


class Fit(NamedTuple):
    """How well a tool fits a query: shares, of the query's words and of the tool's."""

    of_query: float
    of_name: float
    of_description: float

    @property
    def score(self) -> float:
        """All three together."""
        return self.of_query + self.of_name + self.of_description


class Meeting:
    """A query and its tools; the best tool is the one that fits the query's words best."""

    def __init__(self, query: Query, toolset: Toolset) -> None:
        self.query = query
        self.toolset = toolset
        self.tools = toolset.facts

    @cached_property
    def fits(self) -> list[Fit]:
        """How well each tool fits."""
        words = self.query.content
        return [
            Fit(overlap(words, t.vocabulary), overlap(t.names, words), overlap(t.topic, words))
            for t in self.tools
        ]

    @cached_property
    def scores(self) -> list[float]:
        """Scores of the tools, the best first; 0 twice where there are no two."""
        return [*sorted((fit.score for fit in self.fits), reverse=True), 0.0, 0.0]

    @cached_property
    def _place(self) -> int | None:
        """Where the best tool stands; of equal ones the first."""
        places = range(len(self.fits))
        return max(places, key=lambda i: self.fits[i].score, default=None)

    @cached_property
    def best(self) -> ToolFacts:
        """The tool that fits best, one without parameters where there is none."""
        return _NO_TOOL if self._place is None else self.tools[self._place]

    @cached_property
    def fit(self) -> Fit:
        """How well the best tool fits."""
        return Fit(0.0, 0.0, 0.0) if self._place is None else self.fits[self._place]

    @cached_property
    def mentioned(self) -> int:
        """Parameters of which a word occurs in the query."""
        return sum(bool(p & self.query.stems) for tool in self.tools for p in tool.parameters)

    @cached_property
    def name_overlaps(self) -> list[float]:
        """Share of each tool's name that occurs in the query."""
        return [overlap(tool.names, self.query.stems) for tool in self.tools]

    @cached_property
    def description_overlaps(self) -> list[float]:
        """Share of each tool's description that occurs in the query."""
        return [overlap(tool.described, self.query.stems) for tool in self.tools]

    @cached_property
    def enum_hits(self) -> list[int]:
        """Values of each enum of all tools that occur in the query."""
        return [self._hits(values) for tool in self.tools for values in tool.enums]

    @cached_property
    def best_enum_hits(self) -> int:
        """Enums of the best tool of which a value occurs in the query."""
        return sum(self._hits(values) > 0 for values in self.best.enums)

    @cached_property
    def said(self) -> int:
        """Parameters of the best tool of which a word occurs in the query."""
        return sum(bool(stems & self.query.content) for stems in self.best.parameters)

    @cached_property
    def required_said(self) -> int:
        """Required parameters of the best tool that the query speaks of."""
        return sum(bool(stems & self.query.content) for stems in self.best.required_topics)

    @cached_property
    def clauses_by_tool(self) -> Counter[int]:
        """How many clauses are about each tool; a clause that fits none is left out."""
        tools = self.tools[:MAX_TOOLS_BY_CLAUSE]
        found: Counter[int] = Counter()
        for clause in self.query.clauses if tools else ():
            shares = [overlap(clause, tool.vocabulary) for tool in tools]
            if max(shares) > CLAUSE_FITS_FROM:
                found[shares.index(max(shares))] += 1
        return found

    def _hits(self, values: frozenset[str]) -> int:
        text = self.query.lower
        if self.toolset.enum_values * len(text) <= MAX_SCANNED:
            return sum(value in text for value in values)
        return sum(map(self._says, values))

    def _says(self, value: str) -> bool:
        """Return whether the query contains a value, in 1 us once the query is indexed."""
        start = value[:WINDOW_CHARS]
        place = bisect_left(self._windows, start)
        is_found = place < len(self._windows) and self._windows[place].startswith(start)
        return is_found and (len(value) <= WINDOW_CHARS or value in self.query.lower)

    @cached_property
    def _windows(self) -> list[str]:
        """What stands at each place of the query, sorted; 20,000 characters take 5 to 20 ms."""
        text = self.query.lower
        return sorted({text[i : i + WINDOW_CHARS] for i in range(len(text))})


def _mean(values: list[float]) -> float:
    return sum(values) / max(1, len(values))


def _clauses_alike(meeting: Meeting) -> float:
    pairs = combinations(meeting.query.clauses, 2)
    return max((jaccard(one, other) for one, other in pairs), default=0.0)


MEETING: dict[str, Callable[[Meeting], float]] = {
    # All tools.
    "mentioned": lambda m: m.mentioned,
    "mentioned_share": lambda m: m.mentioned / max(1, m.toolset.parameters),
    "name_overlap_max": lambda m: max(m.name_overlaps, default=0.0),
    "name_overlap_mean": lambda m: _mean(m.name_overlaps),
    "description_overlap_max": lambda m: max(m.description_overlaps, default=0.0),
    "description_overlap_mean": lambda m: _mean(m.description_overlaps),
    "numbers_per_parameter": lambda m: len(m.query.numbers) / max(1, m.toolset.parameters),
    "known_share": lambda m: overlap(m.query.content, m.toolset.known),
    "known_words": lambda m: len(m.query.content & m.toolset.known),
    "unknown_words": lambda m: len(m.query.content - m.toolset.known),
    "tools_half_named": lambda m: sum(fit.of_name >= 0.5 for fit in m.fits),
    "tools_named": lambda m: sum(fit.of_name >= 0.99 for fit in m.fits),
    "enum_values_said": lambda m: sum(m.enum_hits),
    "enum_values_said_max": lambda m: max(m.enum_hits, default=0),
    "enums_said_twice": lambda m: sum(hits >= 2 for hits in m.enum_hits),
    # The best tool: does it fit, and alone?
    "best_of_query": lambda m: m.fit.of_query,
    "best_of_name": lambda m: m.fit.of_name,
    "best_of_description": lambda m: m.fit.of_description,
    "best_score": lambda m: m.scores[0],
    "second_score": lambda m: m.scores[1],
    "best_lead": lambda m: m.scores[0] - m.scores[1],
    "tools_near_best": lambda m: sum(fit.score >= NEAR_BEST * m.scores[0] for fit in m.fits),
    # The best tool: what it needs, and whether the query says it; once, or several times.
    "best_parameters": lambda m: len(m.best.parameters),
    "best_required": lambda m: m.best.required,
    "best_optional": lambda m: len(m.best.parameters) - m.best.required,
    "best_numbers": lambda m: m.best.numbers,
    "best_required_numbers": lambda m: m.best.required_numbers,
    "best_required_strings": lambda m: m.best.required_strings,
    "best_booleans": lambda m: m.best.typed("boolean"),
    "best_arrays": lambda m: m.best.typed("array"),
    "best_objects": lambda m: m.best.typed("object"),
    "best_enums": lambda m: len(m.best.enums),
    "best_defaults": lambda m: m.best.defaults,
    "best_depth": lambda m: m.best.depth,
    "best_description_chars": lambda m: m.best.description_chars,
    "best_said": lambda m: m.said,
    "best_unsaid": lambda m: len(m.best.parameters) - m.said,
    "best_required_said": lambda m: m.required_said,
    "best_required_unsaid": lambda m: len(m.best.required_topics) - m.required_said,
    "best_enums_said": lambda m: m.best_enum_hits,
    "best_enums_unsaid": lambda m: len(m.best.enums) - m.best_enum_hits,
    "numbers_per_best_number": lambda m: len(m.query.numbers) / max(1, m.best.required_numbers),
    "numbers_left": lambda m: len(m.query.numbers) - m.best.required_numbers,
    "numbers_left_optional": lambda m: len(m.query.numbers) - m.best.numbers,
    "numbers_missing": lambda m: m.best.required_numbers > 0 and not m.query.numbers,
    "names_per_best_string": lambda m: len(m.query.names) / max(1, m.best.required_strings),
    "names_left": lambda m: len(m.query.names) + m.query.quoted - m.best.required_strings,
    "values_left": lambda m: (
        len(m.query.numbers) + len(set(m.query.names)) + m.query.quoted - m.best.required
    ),
    # Clause by clause.
    "clause_tools": lambda m: len(m.clauses_by_tool),
    "clauses_of_one_tool": lambda m: max(m.clauses_by_tool.values(), default=0),
    "clauses_alike_max": _clauses_alike,
}
"""Counts of query and tools together, by name."""
