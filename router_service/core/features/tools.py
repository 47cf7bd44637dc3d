"""Features of the tools that a request offers, independent of the query."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from router_service.core.cache import Cache
from router_service.core.features.text import (
    FUNCTION_WORDS,
    STEM_CHARS,
    WORD,
    Stems,
    jaccard,
    topic_stems,
)
from router_service.core.messages import Schema, ToolSpec

MAX_COMPARED = 12
"""Tools compared with each other. 66 pairs take 40 us, all pairs of a hundred tools 3 ms."""

_NUMBER_TYPES = frozenset({"integer", "number", "float", "long", "double"})
_EXAMPLE = re.compile(r"format|e\.g\.|example|such as", re.IGNORECASE)
_OPTIONAL = re.compile("optional", re.IGNORECASE)
_FOREIGN = re.compile(r"\b(?:Java|JavaScript)\b")
"""Descriptions of parameters that stand for a value of another language's type."""
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
    types: Counter[str]
    """Schema nodes by type."""
    numbers: int
    """Schema nodes that take a number."""
    defaults: int
    """Schema nodes with a default value, declared or described."""
    undescribed: int
    examples: int
    called_optional: int
    foreign_types: int
    is_camel_case: bool
    size_bytes: int
    """Approximate memory. Most of it is stems, one for a few letters."""


@dataclass(frozen=True, slots=True)
class Toolset:
    """The tools of a request and their features."""

    tools: tuple[ToolFacts, ...]
    vocabulary: Stems
    parameters: int
    enum_values: int
    features: Mapping[str, float]
    size_bytes: int


_facts: Cache[ToolSpec, ToolFacts] = Cache(max_bytes=8 * 2**20)
"""Requests with different lists of tools share tools; analyzing one takes 0.05 ms."""


def analyze_tool(tool: ToolSpec) -> ToolFacts:
    """Return the stems and counts of a tool, from the cache if possible."""
    found = _facts.get(tool)
    if found is not None:
        return found
    nodes: list[Schema] = []
    depth = 0
    level = [p.schema for p in tool.parameters]
    while level:
        nodes += level
        depth += 1
        level = [child for node in level for child in node.children()]
    required = [p for p in tool.parameters if p.required]
    name, topic = _identifier_stems(tool.name), topic_stems(tool.description)
    parameters = tuple([_identifier_stems(p.name) for p in tool.parameters])
    topics = [topic_stems(p.schema.description) for p in tool.parameters]
    words = set(WORD.findall(tool.description.lower())) - FUNCTION_WORDS
    types = Counter([node.type.lower() for node in nodes])
    parameter_description_chars = sum(len(p.schema.description) for p in tool.parameters)
    chars = len(tool.name) + len(tool.description) + parameter_description_chars
    facts = ToolFacts(
        name=name,
        description=frozenset([word[:STEM_CHARS] for word in words]),
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
        required_numbers=sum(p.schema.type.lower() in _NUMBER_TYPES for p in required),
        required_strings=sum(p.schema.type.lower() == "string" for p in required),
        enums=tuple([frozenset([v.lower() for v in node.enum]) for node in nodes if node.enum]),
        name_chars=len(tool.name),
        description_chars=len(tool.description),
        parameter_description_chars=parameter_description_chars,
        nodes=len(nodes),
        depth=depth,
        types=types,
        numbers=sum(types[name] for name in _NUMBER_TYPES),
        defaults=sum(n.has_default or "default" in n.description.lower() for n in nodes),
        undescribed=sum(not node.description for node in nodes),
        examples=sum(_EXAMPLE.search(node.description) is not None for node in nodes),
        called_optional=sum(_OPTIONAL.search(node.description) is not None for node in nodes),
        foreign_types=sum(
            _FOREIGN.search(p.schema.description) is not None for p in tool.parameters
        ),
        is_camel_case=_CAMEL_CASE.search(tool.name) is not None,
        size_bytes=2_000 + 400 * len(nodes) + 20 * chars,
    )
    _facts.put(tool, facts, facts.size_bytes)
    return facts


def _identifier_stems(name: str) -> Stems:
    """Return the stems of a name's words; `getUserById` and `get_user_by_id` have the same."""
    return frozenset([word.lower()[:STEM_CHARS] for word in _IDENTIFIER_WORD.findall(name)])


def analyze_tools(specs: Sequence[ToolSpec]) -> Toolset:
    """Return the tools of a request with their features."""
    tools = tuple([analyze_tool(spec) for spec in specs])
    compared = list(combinations(tools[:MAX_COMPARED], 2))
    topic_similarities = [jaccard(one.topic, other.topic) for one, other in compared]
    name_similarities = [jaccard(one.name, other.name) for one, other in compared]
    types: Counter[str] = Counter()
    for tool in tools:
        types.update(tool.types)
    enums = [values for tool in tools for values in tool.enums]
    parameters = sum(len(tool.parameters) for tool in tools)
    required = sum(tool.required for tool in tools)
    parameter_description_chars = sum(tool.parameter_description_chars for tool in tools)
    features: dict[str, float] = {
        "tools": len(tools),
        "parameters": parameters,
        "parameters_per_tool": parameters / max(1, len(tools)),
        "parameters_max": max((len(tool.parameters) for tool in tools), default=0),
        "required": required,
        "required_max": max((tool.required for tool in tools), default=0),
        "required_min": min((tool.required for tool in tools), default=0),
        "optional": parameters - required,
        "schema_depth": max((tool.depth for tool in tools), default=0),
        "schema_nodes": sum(tool.nodes for tool in tools),
        "enums": len(enums),
        "enum_size_max": max(map(len, enums), default=0),
        "defaults": sum(tool.defaults for tool in tools),
        "examples": sum(tool.examples for tool in tools),
        "called_optional": sum(tool.called_optional for tool in tools),
        "undescribed": sum(tool.undescribed for tool in tools),
        "integers": types["integer"],
        "numbers_typed": types["number"] + types["float"],
        "strings": types["string"],
        "booleans": types["boolean"],
        "arrays": types["array"],
        "objects": types["object"],
        "foreign_types": sum(tool.foreign_types for tool in tools),
        "camel_case_tools": sum(tool.is_camel_case for tool in tools),
        "name_chars": sum(tool.name_chars for tool in tools) / max(1, len(tools)),
        "description_chars": sum(tool.description_chars for tool in tools) / max(1, len(tools)),
        "parameter_description_chars": parameter_description_chars / max(1, parameters),
        "tools_alike_max": max(topic_similarities, default=0.0),
        "tools_alike_mean": sum(topic_similarities) / max(1, len(topic_similarities)),
        "names_alike_max": max(name_similarities, default=0.0),
    }
    return Toolset(
        tools=tools,
        vocabulary=frozenset[str]().union(*(tool.vocabulary for tool in tools)),
        parameters=parameters,
        enum_values=sum(map(len, enums)),
        features=features,
        size_bytes=sum(tool.size_bytes for tool in tools),
    )


TOOL_FEATURES = tuple(analyze_tools(()).features)
