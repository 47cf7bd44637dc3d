"""Structural counts of a request, joined to the encoder's state inside the artifact's graph.

What a request asks for structurally (how many things, of which types, over how many tools)
tells as much of its difficulty as its words: on the recorded reference pool the counts alone
reach a mean AUC of about 0.77 in cross-validation, the words alone about 0.72.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from router_service.core.messages import Conversation, Parameter, Schema, ToolSpec

MAX_QUERY_CHARS = 20_000
"""A longer query is counted up to here: the counts are of sentences, not of documents."""

STEM_CHARS = 5
"""Words are compared by their first letters, so that `forecasts` meets `forecast`."""

_FUNCTION_WORDS = frozenset(
    "the a an of to in for and or with is are on at by from that this be my me i you can what "
    "how it as your would like".split()
)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_WORD = re.compile(r"[a-z]+|\d+")
_IDENTIFIER_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+")
_SEQUENCE = re.compile(
    r"\b(?:then|also|next|after|finally|additionally|second|third|another|both|each"
    r"|respectively|two|three|multiple|same)\b"
)


@dataclass(frozen=True)
class _ToolFacts:
    """What is counted of one tool, whatever the query; cached, since tools come back."""

    names: frozenset[str]
    described: frozenset[str]
    parameters: tuple[frozenset[str], ...]
    required: int
    description_chars: int
    nodes: tuple[Schema, ...]
    depth: int
    camel_case: bool
    foreign_types: int


class _View:
    """One conversation as the features see it: the latest user text, and the tools."""

    def __init__(self, conversation: Conversation) -> None:
        latest = conversation.latest_user
        text = conversation.turns[latest].text if latest is not None else ""
        self.query = text[:MAX_QUERY_CHARS]
        self.tools: list[_ToolFacts] = [_facts(tool) for tool in conversation.tools]

    @cached_property
    def lower(self) -> str:
        return self.query.lower()

    @cached_property
    def words(self) -> list[str]:
        return _WORD.findall(self.lower)

    @cached_property
    def stems(self) -> frozenset[str]:
        return _stems(self.words)

    @cached_property
    def numbers(self) -> list[str]:
        return _NUMBER.findall(self.query)

    @cached_property
    def parameters(self) -> int:
        return sum(len(tool.parameters) for tool in self.tools)

    @cached_property
    def required(self) -> int:
        return sum(tool.required for tool in self.tools)

    @cached_property
    def mentioned(self) -> int:
        """Parameters of which a word occurs in the query."""
        return sum(bool(p & self.stems) for tool in self.tools for p in tool.parameters)

    @cached_property
    def name_overlaps(self) -> list[float]:
        return [_overlap(tool.names, self.stems) for tool in self.tools]

    @cached_property
    def description_overlaps(self) -> list[float]:
        return [_overlap(tool.described, self.stems) for tool in self.tools]

    def nodes(self, test: Callable[[Schema], bool]) -> int:
        return sum(test(node) for tool in self.tools for node in tool.nodes)

    def typed(self, *types: str) -> int:
        return self.nodes(lambda node: node.type.lower() in types)

    def matches(self, pattern: str) -> int:
        return len(re.findall(pattern, self.lower))


FEATURES: dict[str, Callable[[_View], float]] = {
    "tools": lambda v: len(v.tools),
    "parameters": lambda v: v.parameters,
    "parameters_per_tool": lambda v: v.parameters / max(1, len(v.tools)),
    "required": lambda v: v.required,
    "required_max": lambda v: max((t.required for t in v.tools), default=0),
    "optional": lambda v: v.parameters - v.required,
    "schema_depth": lambda v: max((t.depth for t in v.tools), default=0),
    "schema_nodes": lambda v: v.nodes(lambda _: True),
    "enums": lambda v: v.nodes(lambda node: bool(node.enum)),
    "defaults": lambda v: v.nodes(_has_default),
    "integers": lambda v: v.typed("integer"),
    "numbers_typed": lambda v: v.typed("number", "float"),
    "strings": lambda v: v.typed("string"),
    "booleans": lambda v: v.typed("boolean"),
    "arrays": lambda v: v.typed("array"),
    "objects": lambda v: v.typed("object"),
    "foreign_types": lambda v: sum(t.foreign_types for t in v.tools),
    "camel_case_tools": lambda v: sum(t.camel_case for t in v.tools),
    "description_chars": lambda v: sum(t.description_chars for t in v.tools) / max(1, len(v.tools)),
    "mentioned": lambda v: v.mentioned,
    "mentioned_share": lambda v: v.mentioned / max(1, v.parameters),
    "name_overlap_max": lambda v: max(v.name_overlaps, default=0.0),
    "name_overlap_mean": lambda v: sum(v.name_overlaps) / max(1, len(v.name_overlaps)),
    "description_overlap_max": lambda v: max(v.description_overlaps, default=0.0),
    "description_overlap_mean": lambda v: (
        sum(v.description_overlaps) / max(1, len(v.description_overlaps))
    ),
    "query_words": lambda v: len(v.words),
    "query_chars": lambda v: len(v.query),
    "query_numbers": lambda v: len(v.numbers),
    "query_decimals": lambda v: sum("." in number for number in v.numbers),
    "numbers_per_parameter": lambda v: len(v.numbers) / max(1, v.parameters),
    "commas": lambda v: v.query.count(","),
    "ands": lambda v: v.matches(r"\band\b"),
    "ors": lambda v: v.matches(r"\bor\b"),
    "sequence_words": lambda v: len(_SEQUENCE.findall(v.lower)),
    "ordinals": lambda v: v.matches(r"\b(?:first|secondly|\d+(?:st|nd|rd|th)|lastly)\b"),
    "quotes": lambda v: len(re.findall(r"['\"`]", v.query)),
    "brackets": lambda v: len(re.findall(r"[\[\]{}()]", v.query)),
    "capitalized": lambda v: len(re.findall(r"\b[A-Z][a-z]+", v.query)),
    "sentences": lambda v: len(re.findall(r"[.?!](?:\s|$)", v.query)),
    "question_marks": lambda v: v.query.count("?"),
    "asks_how": lambda v: v.lower.startswith("how"),
    "asks_what": lambda v: v.lower.startswith(("what", "who", "when", "where")),
}
"""Every feature by name. A name's meaning never changes: a changed count gets a new name."""


def extract(conversation: Conversation, names: Sequence[str]) -> tuple[float, ...]:
    """Return the named counts of one conversation, in that order, (len(names),)."""
    view = _View(conversation)
    return tuple(float(FEATURES[name](view)) for name in names)


@lru_cache(maxsize=4096)
def _facts(tool: ToolSpec) -> _ToolFacts:
    nodes = tuple(node for p in tool.parameters for node in _walk(p.schema))
    return _ToolFacts(
        names=_identifier_stems(tool.name),
        described=_stems(_WORD.findall(tool.description.lower())),
        parameters=tuple(_identifier_stems(p.name) for p in tool.parameters),
        required=sum(p.required for p in tool.parameters),
        description_chars=len(tool.description),
        nodes=nodes,
        depth=max((_depth(p.schema) for p in tool.parameters), default=0),
        camel_case=bool(re.search("[a-z][A-Z]", tool.name)),
        foreign_types=sum(map(_is_foreign, tool.parameters)),
    )


def _walk(schema: Schema) -> list[Schema]:
    return [schema, *(node for child in schema.children() for node in _walk(child))]


def _depth(schema: Schema) -> int:
    return 1 + max((_depth(child) for child in schema.children()), default=0)


def _has_default(node: Schema) -> bool:
    return node.has_default or "default" in node.description.lower()


def _is_foreign(parameter: Parameter) -> bool:
    """Tell a parameter that stands for a value of another language's type."""
    return bool(re.search(r"\b(?:Java|JavaScript)\b", parameter.schema.description))


def _stems(words: Sequence[str]) -> frozenset[str]:
    return frozenset(word[:STEM_CHARS] for word in words if word not in _FUNCTION_WORDS)


def _identifier_stems(name: str) -> frozenset[str]:
    return frozenset(word.lower()[:STEM_CHARS] for word in _IDENTIFIER_WORD.findall(name))


def _overlap(stems: frozenset[str], query: frozenset[str]) -> float:
    return len(stems & query) / max(1, len(stems))
