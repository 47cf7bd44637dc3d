"""Counts of the tools that a request offers, whatever the query."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

from router_service.core.cache import Cache
from router_service.core.features.words import (
    WORD,
    Stems,
    content,
    identifier_stems,
    jaccard,
    stems,
)
from router_service.core.messages import Parameter, Schema, ToolSpec

MAX_COMPARED = 12
"""Tools compared with each other: 66 pairs take 40 us, all pairs of a hundred tools 3 ms."""

_NUMBERS = frozenset({"integer", "number", "float", "long", "double"})
_EXAMPLE = re.compile(r"format|e\.g\.|example|such as", re.IGNORECASE)
_OPTIONAL = re.compile("optional", re.IGNORECASE)


@dataclass(frozen=True)
class ToolFacts:
    """What is counted of one tool; cached, since tools come back with every turn."""

    names: Stems
    described: Stems
    topic: Stems
    """What its description is about."""
    vocabulary: Stems
    """What its name, description and parameters say together."""
    parameters: tuple[Stems, ...]
    required_topics: tuple[Stems, ...]
    required: int
    required_numbers: int
    required_strings: int
    enums: tuple[frozenset[str], ...]
    name_chars: int
    description_chars: int
    parameter_chars: int
    nodes: int
    types: Counter[str]
    """How many schema nodes there are of each type."""
    defaults: int
    """Schema nodes with a default, declared or described."""
    undescribed: int
    examples: int
    called_optional: int
    depth: int
    camel_case: bool
    foreign_types: int

    def typed(self, *types: str) -> int:
        """Count schema nodes of these types."""
        return sum(self.types[name] for name in types)

    @property
    def numbers(self) -> int:
        """Schema nodes that take a number."""
        return self.typed(*_NUMBERS)

    @property
    def size_bytes(self) -> int:
        """Memory that it takes, about: most of it stems, of which a few letters have one."""
        chars = self.name_chars + self.description_chars + self.parameter_chars
        return 2_000 + 400 * self.nodes + 20 * chars


class Toolset:
    """The tools of a request, and what is counted of several at a time."""

    def __init__(self, tools: Sequence[ToolSpec]) -> None:
        self.facts: tuple[ToolFacts, ...] = tuple(map(facts, tools))

    def __iter__(self) -> Iterator[ToolFacts]:
        return iter(self.facts)

    def __len__(self) -> int:
        return len(self.facts)

    @cached_property
    def known(self) -> Stems:
        """What any of the tools speaks of."""
        return frozenset[str]().union(*(tool.vocabulary for tool in self.facts))

    @cached_property
    def topics_alike(self) -> list[float]:
        """How much each two of the first tools have in common by their descriptions."""
        return _likeness([tool.topic for tool in self.facts])

    @cached_property
    def names_alike(self) -> list[float]:
        """The same by their names."""
        return _likeness([tool.names for tool in self.facts])

    @cached_property
    def parameters(self) -> int:
        """Parameters of all tools."""
        return sum(len(tool.parameters) for tool in self.facts)

    @cached_property
    def enum_values(self) -> int:
        """Values of all enums."""
        return sum(len(values) for tool in self.facts for values in tool.enums)

    @property
    def size_bytes(self) -> int:
        """Memory that it takes, about."""
        return sum(tool.size_bytes for tool in self.facts)


_facts: Cache[ToolSpec, ToolFacts] = Cache(max_bytes=8 * 2**20)
"""Requests with other lists of tools have tools in common; one takes 0.05 ms."""


def facts(tool: ToolSpec) -> ToolFacts:
    """Take a tool apart."""
    found = _facts.get(tool)
    if found is None:
        found = _take_apart(tool)
        _facts.put(tool, found, found.size_bytes)
    return found


def _take_apart(tool: ToolSpec) -> ToolFacts:
    nodes, depth = _walk(tool)
    required = [p for p in tool.parameters if p.required]
    names, topic = identifier_stems(tool.name), content(tool.description)
    parameters = tuple(identifier_stems(p.name) for p in tool.parameters)
    topics = tuple(content(p.schema.description) for p in tool.parameters)
    by_parameter = zip(tool.parameters, parameters, topics, strict=True)
    return ToolFacts(
        names=names,
        described=stems(WORD.findall(tool.description.lower())),
        topic=topic,
        vocabulary=topic.union(names, *topics, *parameters),
        parameters=parameters,
        required_topics=tuple(said | named for p, named, said in by_parameter if p.required),
        required=len(required),
        required_numbers=sum(p.schema.type.lower() in _NUMBERS for p in required),
        required_strings=sum(p.schema.type.lower() == "string" for p in required),
        enums=tuple(frozenset(v.lower() for v in node.enum) for node in nodes if node.enum),
        name_chars=len(tool.name),
        description_chars=len(tool.description),
        parameter_chars=sum(len(p.schema.description) for p in tool.parameters),
        nodes=len(nodes),
        types=Counter(node.type.lower() for node in nodes),
        defaults=sum(map(_has_default, nodes)),
        undescribed=sum(not node.description for node in nodes),
        examples=sum(_EXAMPLE.search(node.description) is not None for node in nodes),
        called_optional=sum(_OPTIONAL.search(node.description) is not None for node in nodes),
        depth=depth,
        camel_case=bool(re.search("[a-z][A-Z]", tool.name)),
        foreign_types=sum(map(_is_foreign, tool.parameters)),
    )


def _has_default(node: Schema) -> bool:
    return node.has_default or "default" in node.description.lower()


def _walk(tool: ToolSpec) -> tuple[Sequence[Schema], int]:
    """Return all schema nodes of a tool's parameters, and the number of their levels."""
    nodes: list[Schema] = []
    depth = 0
    level = [p.schema for p in tool.parameters]
    while level:
        nodes += level
        depth += 1
        level = [child for node in level for child in node.children()]
    return nodes, depth


def _is_foreign(parameter: Parameter) -> bool:
    """Tell a parameter that stands for a value of another language's type."""
    return bool(re.search(r"\b(?:Java|JavaScript)\b", parameter.schema.description))


def _required(tools: Toolset) -> int:
    return sum(tool.required for tool in tools)


def _typed(tools: Toolset, *types: str) -> int:
    return sum(tool.typed(*types) for tool in tools)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))


def _likeness(stems_by_tool: Sequence[Stems]) -> list[float]:
    """Return how much each two of the first sets have in common."""
    return [jaccard(one, other) for one, other in combinations(stems_by_tool[:MAX_COMPARED], 2)]


TOOLS: dict[str, Callable[[Toolset], float]] = {
    "tools": len,
    "parameters": lambda t: t.parameters,
    "parameters_per_tool": lambda t: t.parameters / max(1, len(t)),
    "parameters_max": lambda t: max((len(tool.parameters) for tool in t), default=0),
    "required": _required,
    "required_max": lambda t: max((tool.required for tool in t), default=0),
    "required_min": lambda t: min((tool.required for tool in t), default=0),
    "optional": lambda t: t.parameters - _required(t),
    "schema_depth": lambda t: max((tool.depth for tool in t), default=0),
    "schema_nodes": lambda t: sum(tool.nodes for tool in t),
    "enums": lambda t: sum(len(tool.enums) for tool in t),
    "enum_size_max": lambda t: max((len(e) for tool in t for e in tool.enums), default=0),
    "defaults": lambda t: sum(tool.defaults for tool in t),
    "examples": lambda t: sum(tool.examples for tool in t),
    "called_optional": lambda t: sum(tool.called_optional for tool in t),
    "undescribed": lambda t: sum(tool.undescribed for tool in t),
    "integers": lambda t: _typed(t, "integer"),
    "numbers_typed": lambda t: _typed(t, "number", "float"),
    "strings": lambda t: _typed(t, "string"),
    "booleans": lambda t: _typed(t, "boolean"),
    "arrays": lambda t: _typed(t, "array"),
    "objects": lambda t: _typed(t, "object"),
    "foreign_types": lambda t: sum(tool.foreign_types for tool in t),
    "camel_case_tools": lambda t: sum(tool.camel_case for tool in t),
    "name_chars": lambda t: _mean([tool.name_chars for tool in t]),
    "description_chars": lambda t: _mean([tool.description_chars for tool in t]),
    "parameter_description_chars": lambda t: (
        sum(tool.parameter_chars for tool in t) / max(1, t.parameters)
    ),
    "tools_alike_max": lambda t: max(t.topics_alike, default=0.0),
    "tools_alike_mean": lambda t: _mean(t.topics_alike),
    "names_alike_max": lambda t: max(t.names_alike, default=0.0),
}
"""Counts of the tools alone, by name."""
