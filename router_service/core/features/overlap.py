"""Features of a query and its tools together: whether a tool fits, and has what it needs.

The best tool is the one whose words the query shares most.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import combinations

from router_service.core.features.text import Query, analyze_query, jaccard, overlap
from router_service.core.features.tools import ToolFacts, Toolset, analyze_tool, analyze_tools
from router_service.core.messages import ToolSpec

MAX_TOOLS_BY_CLAUSE = 32
"""Tools that each clause is compared with."""
CLAUSE_FITS_FROM = 0.25
"""A clause is about a tool if the tool's vocabulary has more than this share of its words."""
NEAR_BEST = 0.6
"""A tool is near the best one if it has at least this share of its score."""
MAX_SCANNED = 1_000_000
"""Enum values times characters of the query. Up to here, `in` searches for each value: that takes
0.1 to 1 ns for a character, and 50 ns if value and query repeat the same letters. Beyond it, the
query is indexed first."""
WINDOW_CHARS = 256

_NO_TOOL = analyze_tool(ToolSpec(""))


def overlap_features(query: Query, toolset: Toolset) -> dict[str, float]:
    """Return the features of a query and its tools together, by name."""
    tools = toolset.tools
    name_overlaps = [overlap(tool.name, query.stems) for tool in tools]
    description_overlaps = [overlap(tool.description, query.stems) for tool in tools]
    mentioned = sum(
        not parameter.isdisjoint(query.stems) for tool in tools for parameter in tool.parameters
    )
    enum_hits = count_enum_values(query.lower, toolset)
    all_hits = [hits for hits_of_tool in enum_hits for hits in hits_of_tool]

    # How well each tool fits: shares of the query's words, of its name and of its description.
    topic = query.topic
    fits = [
        (overlap(topic, tool.vocabulary), overlap(tool.name, topic), overlap(tool.topic, topic))
        for tool in tools
    ]
    scores = [of_query + of_name + of_description for of_query, of_name, of_description in fits]
    best, best_fit = _NO_TOOL, (0.0, 0.0, 0.0)
    best_hits: list[int] = []
    if tools:
        index = scores.index(max(scores))
        best, best_fit, best_hits = tools[index], fits[index], enum_hits[index]
    first, second = sorted([*scores, 0.0, 0.0], reverse=True)[:2]

    # Clauses by the tool that they are about.
    clauses: Counter[int] = Counter()
    compared = tools[:MAX_TOOLS_BY_CLAUSE]
    for clause in query.clauses if compared else ():
        shares = [overlap(clause, tool.vocabulary) for tool in compared]
        largest = max(shares)
        if largest > CLAUSE_FITS_FROM:
            clauses[shares.index(largest)] += 1
    clause_pairs = combinations(query.clauses, 2)

    return {
        # All tools.
        "mentioned": mentioned,
        "mentioned_share": mentioned / max(1, toolset.parameters),
        "name_overlap_max": max(name_overlaps, default=0.0),
        "name_overlap_mean": sum(name_overlaps) / max(1, len(name_overlaps)),
        "description_overlap_max": max(description_overlaps, default=0.0),
        "description_overlap_mean": sum(description_overlaps) / max(1, len(description_overlaps)),
        "numbers_per_parameter": len(query.numbers) / max(1, toolset.parameters),
        "known_share": overlap(topic, toolset.vocabulary),
        "known_words": len(topic & toolset.vocabulary),
        "unknown_words": len(topic - toolset.vocabulary),
        "tools_half_named": sum(of_name >= 0.5 for _, of_name, _ in fits),
        "tools_named": sum(of_name >= 0.99 for _, of_name, _ in fits),
        "enum_values_said": sum(all_hits),
        "enum_values_said_max": max(all_hits, default=0),
        "enums_said_twice": sum(hits >= 2 for hits in all_hits),
        # How well the best tool fits, and whether others fit as well.
        "best_of_query": best_fit[0],
        "best_of_name": best_fit[1],
        "best_of_description": best_fit[2],
        "best_score": first,
        "second_score": second,
        "best_lead": first - second,
        "tools_near_best": sum(score >= NEAR_BEST * first for score in scores),
        **_best_tool_features(query, best, best_hits),
        # Clauses.
        "clause_tools": len(clauses),
        "clauses_of_one_tool": max(clauses.values(), default=0),
        "clauses_alike_max": max((jaccard(one, other) for one, other in clause_pairs), default=0.0),
    }


def _best_tool_features(
    query: Query, tool: ToolFacts, enum_hits: Sequence[int]
) -> dict[str, float]:
    """Return what the best tool needs, and how much of that the query has."""
    numbers, names, quoted = len(query.numbers), len(query.names), query.quoted_texts
    parameters = len(tool.parameters)
    said = sum(not stems.isdisjoint(query.topic) for stems in tool.parameters)
    required_said = sum(not stems.isdisjoint(query.topic) for stems in tool.required_parameters)
    enums_said = sum(hits > 0 for hits in enum_hits)
    return {
        "best_parameters": parameters,
        "best_required": tool.required,
        "best_optional": parameters - tool.required,
        "best_numbers": tool.numbers,
        "best_required_numbers": tool.required_numbers,
        "best_required_strings": tool.required_strings,
        "best_booleans": tool.types["boolean"],
        "best_arrays": tool.types["array"],
        "best_objects": tool.types["object"],
        "best_enums": len(tool.enums),
        "best_defaults": tool.defaults,
        "best_depth": tool.depth,
        "best_description_chars": tool.description_chars,
        "best_said": said,
        "best_unsaid": parameters - said,
        "best_required_said": required_said,
        "best_required_unsaid": len(tool.required_parameters) - required_said,
        "best_enums_said": enums_said,
        "best_enums_unsaid": len(tool.enums) - enums_said,
        # More values than the tool needs mean several calls.
        "numbers_per_best_number": numbers / max(1, tool.required_numbers),
        "numbers_left": numbers - tool.required_numbers,
        "numbers_left_optional": numbers - tool.numbers,
        "numbers_missing": tool.required_numbers > 0 and not numbers,
        "names_per_best_string": names / max(1, tool.required_strings),
        "names_left": names + quoted - tool.required_strings,
        "values_left": numbers + len(set(query.names)) + quoted - tool.required,
    }


def count_enum_values(text: str, toolset: Toolset) -> list[list[int]]:
    """Return for each enum of each tool how many of its values occur in a lower-case text."""
    if toolset.enum_values * len(text) <= MAX_SCANNED:
        return [
            [sum([value in text for value in values]) for values in tool.enums]
            for tool in toolset.tools
        ]
    # Index of the text: 20,000 characters take 5 to 20 ms, and a look-up 1 us.
    windows = sorted({text[i : i + WINDOW_CHARS] for i in range(len(text))})

    def occurs(value: str) -> bool:
        start = value[:WINDOW_CHARS]
        index = bisect_left(windows, start)
        is_found = index < len(windows) and windows[index].startswith(start)
        return is_found and (len(value) <= WINDOW_CHARS or value in text)

    return [[sum(map(occurs, values)) for values in tool.enums] for tool in toolset.tools]


OVERLAP_FEATURES = tuple(overlap_features(analyze_query(""), analyze_tools(())))
