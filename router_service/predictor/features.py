"""Structural features of a request, which the router's model reads in addition to the token ids.

The structure of a request says as much about its difficulty as its words: how many things it asks
for, their types, the number of tools, and whether the query contains what the tools need.
`training/EXPERIMENTS.md` measures each group of features.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, repeat

from router_service.apis.conversation import Conversation, Role, SchemaSummary, ToolSpec
from router_service.core.resources import Cache, shared_cache
from router_service.predictor.text_features import (
    FUNCTION_WORDS,
    TEXT_FEATURES,
    WORD,
    Query,
    Stems,
    analyze_query,
    overlap,
    stems_of,
    topic_stems,
)

MAX_COMPARED = 12
"""Number of tools that are compared with each other. Their 66 pairs take 40 us; all pairs of 100
tools would take 3 ms."""

MAX_TOOLS_BY_CLAUSE = 32
"""Number of tools that each clause of the query is compared with."""
CLAUSE_FITS_FROM = 0.25
"""A clause is about a tool if more than this share of the clause's words is in the tool's
vocabulary."""
NEAR_BEST = 0.6
"""A tool is near the best one if its score is at least this share of the best score."""
MAX_SCANNED = 1_000_000
"""Limit on the number of enum values times the number of characters of the query. Up to it, `in`
searches for each value: that takes 0.1 to 1 ns for a character, and 50 ns if value and query repeat
the same letters. Beyond it, the query is indexed first."""
WINDOW_CHARS = 256
MAX_QUERY_CHARS = 20_000
"""Characters of the query that are read: the features describe sentences, not documents."""

_QUERY_CHAR_BYTES = 60
_ENTRY_BYTES = 10_000
"""Upper bounds of memory: for each character of a cached query, and for each entry of the caches
below in addition to its query or tools."""

_NUMBER_TYPES = frozenset({"integer", "number", "float", "long", "double"})
_EXAMPLE = re.compile(r"format|e\.g\.|example|such as", re.IGNORECASE)
_OPTIONAL = re.compile("optional", re.IGNORECASE)
_FOREIGN = re.compile(r"\b(?:Java|JavaScript)\b")
"""Matches descriptions of parameters whose values have a type of Java or JavaScript."""
_CAMEL_CASE = re.compile("[a-z][A-Z]")
_IDENTIFIER_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+")


@dataclass(frozen=True, slots=True)
class ToolFacts:
    """Stems and counts of one tool."""

    name: Stems
    description: Stems
    """Stems of all words of the description, without function words."""
    vocabulary: Stems
    """Stems of the name, of the parameters' names, and of the topics of all descriptions."""
    topic: Stems
    """Stems of the description's words that carry its topic."""
    parameters: tuple[Stems, ...]
    """Stems of each parameter's name."""
    required_parameters: tuple[Stems, ...]
    """Stems of each required parameter's name and topic."""
    required: int
    required_numbers: int
    required_strings: int
    enums: tuple[frozenset[str], ...]
    """Values of each enum, in lower case."""
    name_chars: int
    description_chars: int
    parameter_description_chars: int
    nodes: int
    """Schema nodes of all parameters."""
    depth: int
    """Levels of schema nodes."""
    numbers: int
    """Schema nodes with a numeric type."""
    booleans: int
    arrays: int
    objects: int
    defaults: int
    """Schema nodes with a default value, declared or mentioned in the description."""
    summed: tuple[int, ...]
    """Counts whose sums over all tools are the features `_SUMMED`, in that order."""
    size_bytes: int
    """Approximate memory, mostly of stems. A text has one stem for every few letters."""


@dataclass(frozen=True, slots=True)
class Toolset:
    """The tools of a request and their features."""

    tools: tuple[ToolFacts, ...]
    vocabulary: Stems
    parameters: int
    enum_values: int
    features: Mapping[str, float]
    size_bytes: int


_SUMMED = (
    "defaults",
    "examples",
    "called_optional",
    "undescribed",
    "integers",
    "numbers_typed",
    "strings",
    "booleans",
    "arrays",
    "objects",
    "foreign_types",
    "camel_case_tools",
)
"""Features of a list of tools that are sums over the tools."""


_facts: Cache[ToolSpec, ToolFacts] = shared_cache("tool_facts", max_bytes=12 * 2**20)
"""Facts by tool, because different tool lists often share tools. Analyzing a tool takes 0.05 ms."""


def analyze_tool(tool: ToolSpec) -> ToolFacts:
    """Return the stems and counts of a tool, from the cache if possible."""
    found = _facts.get(tool)
    if found is not None:
        return found
    nodes: list[SchemaSummary] = []
    depth = 0
    level = [p.schema for p in tool.parameters]
    while level:
        nodes += level
        depth += 1
        inner = [node for node in level if node.properties or node.items or node.alternatives]
        level = [child for node in inner for child in node.children()]
    types = [node.type.lower() for node in nodes]
    booleans, arrays, objects = map(types.count, ("boolean", "array", "object"))
    # The descriptions are searched together first: most of them have none of these words.
    descriptions = [node.description for node in nodes if node.description]
    described = "\n".join(descriptions)
    examples = called_optional = foreign_types = 0
    if _EXAMPLE.search(described):
        examples = sum([_EXAMPLE.search(text) is not None for text in descriptions])
    if _OPTIONAL.search(described):
        called_optional = sum([_OPTIONAL.search(text) is not None for text in descriptions])
    if "Java" in described:
        of_parameters = [_FOREIGN.search(p.schema.description) for p in tool.parameters]
        foreign_types = sum([found is not None for found in of_parameters])
    defaults = sum([node.has_default for node in nodes])
    if "default" in described.lower():
        defaults = sum([n.has_default or "default" in n.description.lower() for n in nodes])
    required = [p for p in tool.parameters if p.required]
    types_required = [p.schema.type.lower() for p in required]
    name, topic = _identifier_stems(tool.name), topic_stems(tool.description)
    parameters = tuple([_identifier_stems(p.name) for p in tool.parameters])
    topics = [topic_stems(p.schema.description) for p in tool.parameters]
    words = set(WORD.findall(tool.description.lower())) - FUNCTION_WORDS
    parameter_description_chars = sum([len(p.schema.description) for p in tool.parameters])
    chars = len(tool.name) + len(tool.description) + parameter_description_chars
    facts = ToolFacts(
        name=name,
        description=stems_of(words),
        vocabulary=topic.union(name, *topics, *parameters),
        topic=topic,
        parameters=parameters,
        required_parameters=tuple(
            [
                about | named
                for p, named, about in zip(tool.parameters, parameters, topics, strict=True)
                if p.required
            ]
        ),
        required=len(required),
        required_numbers=sum([kind in _NUMBER_TYPES for kind in types_required]),
        required_strings=types_required.count("string"),
        enums=tuple([frozenset([v.lower() for v in node.enum]) for node in nodes if node.enum]),
        name_chars=len(tool.name),
        description_chars=len(tool.description),
        parameter_description_chars=parameter_description_chars,
        nodes=len(nodes),
        depth=depth,
        numbers=sum([kind in _NUMBER_TYPES for kind in types]),
        booleans=booleans,
        arrays=arrays,
        objects=objects,
        defaults=defaults,
        summed=(
            defaults,
            examples,
            called_optional,
            len(nodes) - len(descriptions),
            types.count("integer"),
            types.count("number") + types.count("float"),
            types.count("string"),
            booleans,
            arrays,
            objects,
            foreign_types,
            _CAMEL_CASE.search(tool.name) is not None,
        ),
        # The tool is the key, and its enums are kept twice.
        size_bytes=2_000 + 400 * len(nodes) + 20 * chars + 2 * tool.size_bytes,
    )
    _facts.put(tool, facts, facts.size_bytes)
    return facts


def _identifier_stems(name: str) -> Stems:
    """Return the stems of a name's words, equal for `getUserById` and `get_user_by_id`."""
    return stems_of([word.lower() for word in _IDENTIFIER_WORD.findall(name)])


def analyze_tools(specs: Sequence[ToolSpec]) -> Toolset:
    """Return the tools of a request with their features."""
    tools = tuple([analyze_tool(spec) for spec in specs])
    compared = tools[:MAX_COMPARED]
    topic_similarities = _similarities([tool.topic for tool in compared])
    name_similarities = _similarities([tool.name for tool in compared])
    enums = [values for tool in tools for values in tool.enums]
    numbers_of_parameters = [len(tool.parameters) for tool in tools]
    parameters = sum(numbers_of_parameters)
    numbers_of_required = [tool.required for tool in tools]
    required = sum(numbers_of_required)
    parameter_description_chars = sum([tool.parameter_description_chars for tool in tools])
    sums = map(sum, zip(*[tool.summed for tool in tools], strict=True)) if tools else repeat(0)
    summed = dict(zip(_SUMMED, sums, strict=False))
    features: dict[str, float] = {
        "tools": len(tools),
        "parameters": parameters,
        "parameters_per_tool": parameters / max(1, len(tools)),
        "parameters_max": max(numbers_of_parameters, default=0),
        "required": required,
        "required_max": max(numbers_of_required, default=0),
        "required_min": min(numbers_of_required, default=0),
        "optional": parameters - required,
        "schema_depth": max([tool.depth for tool in tools], default=0),
        "schema_nodes": sum([tool.nodes for tool in tools]),
        "enums": len(enums),
        "enum_size_max": max(map(len, enums), default=0),
        **summed,
        "name_chars": sum([tool.name_chars for tool in tools]) / max(1, len(tools)),
        "description_chars": sum([tool.description_chars for tool in tools]) / max(1, len(tools)),
        "parameter_description_chars": parameter_description_chars / max(1, parameters),
        "tools_alike_max": max(topic_similarities, default=0.0),
        "tools_alike_mean": sum(topic_similarities) / max(1, len(topic_similarities)),
        "names_alike_max": max(name_similarities, default=0.0),
    }
    return Toolset(
        tools=tools,
        vocabulary=frozenset[str]().union(*[tool.vocabulary for tool in tools]),
        parameters=parameters,
        enum_values=sum(map(len, enums)),
        features=features,
        size_bytes=sum([tool.size_bytes for tool in tools]),
    )


def _similarities(sets: Sequence[Stems]) -> list[float]:
    """Return the Jaccard similarities of all pairs of sets."""
    # Every pair is compared without a call, which takes half of the time of `jaccard`.
    sized = [(each, len(each)) for each in sets]
    return [
        (common := len(one & other)) / ((size + other_size - common) or 1)
        for (one, size), (other, other_size) in combinations(sized, 2)
    ]


TOOL_FEATURES = tuple(analyze_tools(()).features)


_NO_TOOL = analyze_tool(ToolSpec(""))


def overlap_features(query: Query, toolset: Toolset) -> dict[str, float]:
    """Return the features of a query and its tools together, by name."""
    tools, said, topic = toolset.tools, query.stems, query.topic
    # These shares are computed without a call of `overlap` for each, which takes twice as long.
    name_overlaps = [len(tool.name & said) / (len(tool.name) or 1) for tool in tools]
    description_overlaps = [
        len(tool.description & said) / (len(tool.description) or 1) for tool in tools
    ]
    mentioned = 0
    for tool in tools:
        mentioned += sum([not stems.isdisjoint(said) for stems in tool.parameters])
    enum_hits = count_enum_values(query.lower, toolset)
    all_hits = [hits for hits_of_tool in enum_hits for hits in hits_of_tool]

    fits = _fits(topic, toolset)
    scores = [of_query + of_name + of_description for of_query, of_name, of_description in fits]
    best, best_fit = _NO_TOOL, (0.0, 0.0, 0.0)
    best_hits: list[int] = []
    if tools:
        index = scores.index(max(scores))
        best, best_fit, best_hits = tools[index], fits[index], enum_hits[index]
    first, second = sorted([*scores, 0.0, 0.0], reverse=True)[:2]

    # Number of clauses about each tool, by the index of the tool.
    clauses: dict[int, int] = {}
    vocabularies = [tool.vocabulary for tool in tools[:MAX_TOOLS_BY_CLAUSE]]
    for clause in query.clauses if vocabularies else ():
        common = [len(clause & vocabulary) for vocabulary in vocabularies]
        largest = max(common)
        if largest > CLAUSE_FITS_FROM * max(1, len(clause)):
            place = common.index(largest)
            clauses[place] = clauses.get(place, 0) + 1

    return {
        # Features over all tools.
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
        "tools_half_named": sum([of_name >= 0.5 for _, of_name, _ in fits]),
        "tools_named": sum([of_name >= 0.99 for _, of_name, _ in fits]),
        "enum_values_said": sum(all_hits),
        "enum_values_said_max": max(all_hits, default=0),
        "enums_said_twice": sum([hits >= 2 for hits in all_hits]),
        # How well the best tool fits, and whether other tools fit as well.
        "best_of_query": best_fit[0],
        "best_of_name": best_fit[1],
        "best_of_description": best_fit[2],
        "best_score": first,
        "second_score": second,
        "best_lead": first - second,
        "tools_near_best": sum([score >= NEAR_BEST * first for score in scores]),
        **_best_tool_features(query, best, best_hits),
        # Features over the clauses of the query.
        "clause_tools": len(clauses),
        "clauses_of_one_tool": max(clauses.values(), default=0),
        "clauses_alike_max": max(_similarities(query.clauses), default=0.0),
    }


def _fits(topic: Stems, toolset: Toolset) -> list[tuple[float, float, float]]:
    """Return how well each tool fits a query with this topic.

    That is the share of the query's words that the tool contains, and the shares of the tool's name
    and of its description that the query contains.
    """
    words_of_topic = len(topic) or 1
    return [
        (
            len(topic & tool.vocabulary) / words_of_topic,
            len(tool.name & topic) / (len(tool.name) or 1),
            len(tool.topic & topic) / (len(tool.topic) or 1),
        )
        for tool in toolset.tools
    ]


def _best_tool_features(
    query: Query, tool: ToolFacts, enum_hits: Sequence[int]
) -> dict[str, float]:
    """Return features of the best tool: what it needs, and how much of that the query contains."""
    numbers, names, quoted = len(query.numbers), len(query.names), query.quoted_texts
    parameters = len(tool.parameters)
    mentioned = sum([not stems.isdisjoint(query.topic) for stems in tool.parameters])
    required_mentioned = sum(
        [not stems.isdisjoint(query.topic) for stems in tool.required_parameters]
    )
    enums_mentioned = sum([hits > 0 for hits in enum_hits])
    return {
        "best_parameters": parameters,
        "best_required": tool.required,
        "best_optional": parameters - tool.required,
        "best_numbers": tool.numbers,
        "best_required_numbers": tool.required_numbers,
        "best_required_strings": tool.required_strings,
        "best_booleans": tool.booleans,
        "best_arrays": tool.arrays,
        "best_objects": tool.objects,
        "best_enums": len(tool.enums),
        "best_defaults": tool.defaults,
        "best_depth": tool.depth,
        "best_description_chars": tool.description_chars,
        "best_said": mentioned,
        "best_unsaid": parameters - mentioned,
        "best_required_said": required_mentioned,
        "best_required_unsaid": len(tool.required_parameters) - required_mentioned,
        "best_enums_said": enums_mentioned,
        "best_enums_unsaid": len(tool.enums) - enums_mentioned,
        # More values than the tool needs suggest several calls.
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
            if tool.enums
            else []
            for tool in toolset.tools
        ]
    # Index of the text: it takes 5 to 20 ms for 20,000 characters, and a look-up takes 1 us.
    windows = sorted({text[i : i + WINDOW_CHARS] for i in range(len(text))})

    def occurs(value: str) -> bool:
        start = value[:WINDOW_CHARS]
        index = bisect_left(windows, start)
        is_found = index < len(windows) and windows[index].startswith(start)
        return is_found and (len(value) <= WINDOW_CHARS or value in text)

    return [[sum(map(occurs, values)) for values in tool.enums] for tool in toolset.tools]


OVERLAP_FEATURES = tuple(overlap_features(analyze_query(""), analyze_tools(())))


FEATURES = (*TEXT_FEATURES, *TOOL_FEATURES, *OVERLAP_FEATURES, "turns", "system_chars")
"""Names of all features. The meaning of a name never changes: a changed feature gets a new name."""

_WHOLE: Mapping[float, float] = {number: float(number) for number in range(1_000)}
"""One object for each whole number, which all conversations share, because predictions are cached
with their features: 1.5 KB instead of 4.4 KB for each of BFCL's requests."""

# These caches belong to the process and not to a router. Loaded releases can share them, because
# their values depend only on their keys.
_queries: Cache[str, Query] = shared_cache("queries", max_bytes=4 * 2**20)
"""While an agent works on a task, all its requests have the same latest user text. Analyzing a
text takes 0.3 ms."""
_toolsets: Cache[tuple[ToolSpec, ...], Toolset] = shared_cache("toolsets", max_bytes=12 * 2**20)
"""Analyzing 20 tools takes 1 ms."""


def extract(conversation: Conversation, names: Sequence[str]) -> tuple[float, ...]:
    """Return the features of a conversation that `names` lists, in its order, (len(names),)."""
    if not names:
        return ()
    query, toolset = _analyze(conversation)
    system = [turn.text for turn in conversation.turns if turn.role is Role.SYSTEM]
    features = {
        **query.features,
        **toolset.features,
        **overlap_features(query, toolset),
        "turns": len(conversation.turns),
        "system_chars": sum(map(len, system)),
    }
    values = map(features.__getitem__, names)
    return tuple([_WHOLE[value] if value in _WHOLE else float(value) for value in values])


def most_relevant_first(conversation: Conversation) -> list[ToolSpec]:
    """Return the tools, those that fit the deciding turn best first; ties keep their order."""
    query, toolset = _analyze(conversation)
    scores = [sum(fit) for fit in _fits(query.topic, toolset)]
    places = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)
    return [conversation.tools[place] for place in places]


def _analyze(conversation: Conversation) -> tuple[Query, Toolset]:
    """Return the parts of the deciding turn's text and the tools, from the caches if possible."""
    latest = conversation.deciding_turn
    text = conversation.turns[latest].text[:MAX_QUERY_CHARS] if latest is not None else ""
    query = _queries.get(text)
    if query is None:
        query = analyze_query(text)
        _queries.put(text, query, size_bytes=_ENTRY_BYTES + _QUERY_CHAR_BYTES * len(text))
    toolset = _toolsets.get(conversation.tools)
    if toolset is None:
        toolset = analyze_tools(conversation.tools)
        _toolsets.put(conversation.tools, toolset, size_bytes=_ENTRY_BYTES + toolset.size_bytes)
    return query, toolset
