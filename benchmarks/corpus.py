"""A made-up corpus of tool-calling queries with ten models' answers, of any size.

Shares, lengths, duplicates and conversations imitate the paper's five datasets (its section on
datasets and its tables of misrouted queries), with tools and words of our own. Whether a model is
right depends on what a router can see: the numbers of tools, of calls and of words, the topic, and
how much the model likes this topic.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson

from router_service.apis.conversation import Json
from router_service.checker.toolbox import ExpectedCall
from switchcraft_training.datasets.rows import encode_row, write_lines
from switchcraft_training.records import Example, Expected, Judged

DATASETS = {"glaive": 83_814, "xlam": 60_000, "hermes": 8_940, "bfcl": 3_841, "confetti": 506}
"""Examples of each dataset before deduplication (paper, table of datasets)."""

REPEATED_SHARE = 1 - 122_267 / 157_101
"""Share of examples that repeat an earlier pair of query and tools (paper, section on datasets)."""

WORDS = ((4, 15, 0.22), (15, 22, 0.25), (22, 44, 0.28), (44, 68, 0.15), (68, 400, 0.10))
"""Lengths of a query with their shares (paper, table of misrouted queries by text length).

The longest one of the paper has 3,137 tokens.
"""

TURNS = {"glaive": 4, "xlam": 1, "hermes": 2, "bfcl": 6, "confetti": 9}
"""Most user turns of a conversation; each turn is a separate example."""

TOOLS = {"glaive": 2, "xlam": 6, "hermes": 4, "bfcl": 20, "confetti": 12}
"""Most tools that a query offers."""

NEAR_SHARE = 0.25
"""Share of queries that repeat an earlier one with another number and name."""

TOPICS = 40
APIS = 4_000
ARMS = tuple(f"arm-{number}" for number in range(10))
ABILITIES = np.linspace(0.2, 2.2, len(ARMS))
WORD_COUNT = 6_000
_SYLLABLES = [
    f"{first}{vowel}{last}"
    for first in "b c d f g h k l m n p r s t v w".split()
    for vowel in "aeiou"
    for last in ("", "n", "r", "s", "t")
]
_TYPES = ("string", "string", "integer", "number", "boolean")


@dataclass(frozen=True, slots=True)
class Tool:
    """An invented tool: its definition, the types of its parameters, and its topic."""

    definition: Json
    types: dict[str, str]
    topic: int

    @property
    def name(self) -> str:
        """The tool's name."""
        return str(self.definition["function"]["name"])


def write_corpus(folder: Path, queries: int, seed: int = 0) -> Path:
    """Write a labelling run of `queries` distinct queries, and of repeated ones, to a folder.

    The folder gets `rows.jsonl` and `answers.jsonl`, as `import` and `label` write them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    examples = Corpus(rng).examples(queries)
    answers = (folder / "answers.jsonl").open("wb")

    def lines() -> Iterator[bytes]:
        for judged, topic in examples:
            yield encode_row(judged)
            for answer in answers_of(judged, topic, rng):
                answers.write(orjson.dumps(answer) + b"\n")

    with answers:
        write_lines(lines(), folder / "rows.jsonl")
    return folder


class Corpus:
    """Generator of queries over a fixed set of words and tools."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._words = [
            "".join(rng.choice(_SYLLABLES, 1 + number % 3)) for number in range(WORD_COUNT)
        ]
        self._tools = [self._tool(number) for number in range(APIS)]
        self._queries: list[list[str]] = []

    def examples(self, queries: int) -> Iterator[tuple[Judged, int]]:
        """Yield the examples with their topics, until `queries` distinct ones were yielded."""
        names = list(DATASETS)
        shares = np.array(list(DATASETS.values()), dtype=np.float64)
        # A conversation has several examples, so that fewer conversations than examples are drawn.
        shares /= np.array([(TURNS[name] + 1) / 2 for name in names])
        number = distinct = 0
        kept: list[tuple[Judged, int]] = []
        while distinct < queries:
            name = names[int(self._rng.choice(len(names), p=shares / shares.sum()))]
            for judged, topic in self._conversation(name, f"{number}"):
                if distinct == queries:
                    break
                distinct += 1
                yield judged, topic
                if self._rng.random() < 0.02:
                    kept.append((judged, topic))
            number += 1
            while kept and self._rng.random() < REPEATED_SHARE:
                again, topic = kept[int(self._rng.integers(len(kept)))]
                number += 1
                example = again.example
                copy = Example(
                    f"{number}-again", example.category, example.request, example.dataset
                )
                yield Judged(copy, again.expected), topic

    def _conversation(self, dataset: str, number: str) -> Iterator[tuple[Judged, int]]:
        """Yield an example for each turn of a conversation."""
        rng = self._rng
        topic = int(rng.integers(TOPICS))
        own = [self._tools[topic + TOPICS * int(rng.integers(APIS // TOPICS))]]
        more = int(rng.integers(TOOLS[dataset]))
        own += [self._tools[int(rng.integers(APIS))] for _ in range(more)]
        tools = list({tool.name: tool for tool in own}.values())
        turns = int(rng.integers(1, TURNS[dataset] + 1))
        messages: list[Json] = []
        if dataset in {"hermes", "glaive"}:
            messages.append({"role": "system", "content": "Use the functions if they help."})
        for turn in range(turns):
            text, expected = self._query(tools)
            messages.append({"role": "user", "content": text})
            request = {
                "messages": list(messages),
                "tools": [tool.definition for tool in tools],
            }
            example = Example(
                f"{number}-{turn}",
                f"{min(len(expected.calls), 2)}-calls",
                request,
                dataset,
                number if turns > 1 else "",
            )
            yield Judged(example, expected), topic
            messages.append({"role": "assistant", "content": self._text(12)})

    def _query(self, tools: Sequence[Tool]) -> tuple[str, Expected]:
        """Return a query and its expected calls; the values are in the text."""
        rng = self._rng
        if self._queries and rng.random() < NEAR_SHARE:
            words = list(self._queries[int(rng.integers(len(self._queries)))])
        else:
            low, high, _ = WORDS[int(rng.choice(len(WORDS), p=[share for *_, share in WORDS]))]
            words = self._text(int(rng.integers(low, high))).split()
            self._queries.append(list(words))
        calls = []
        for _ in range(int(rng.choice([0, 1, 1, 1, 2, 3]))):
            tool = tools[int(rng.integers(min(2, len(tools))))]
            arguments = {name: self._value(kind) for name, kind in tool.types.items()}
            spoken = [str(value) for value in arguments.values()]
            words += [*tool.name.split("_"), *spoken]
            calls.append(ExpectedCall(tool.name, {k: (v,) for k, v in arguments.items()}))
        return " ".join(words), Expected(tuple(calls))

    def _tool(self, number: int) -> Tool:
        rng = self._rng
        types = {
            f"{self._words[int(rng.integers(600))]}_{place}": str(rng.choice(_TYPES))
            for place in range(int(rng.integers(1, 5)))
        }
        properties = {
            name: {"type": kind, "description": self._text(9)} for name, kind in types.items()
        }
        name = f"{self._words[number % 97]}_{self._words[100 + number]}_{number % TOPICS}"
        function = {
            "name": name,
            "description": self._text(14),
            "parameters": {"type": "object", "properties": properties, "required": list(types)},
        }
        return Tool({"type": "function", "function": function}, types, number % TOPICS)

    def _text(self, words: int) -> str:
        # A few words are frequent, as in any language (Zipf's law with exponent 1).
        places = WORD_COUNT ** self._rng.random(words)
        return " ".join(self._words[int(place) - 1] for place in places)

    def _value(self, kind: str) -> Json:
        match kind:
            case "integer":
                return int(self._rng.integers(1_000))
            case "number":
                return float(self._rng.integers(1_000)) / 4
            case "boolean":
                return bool(self._rng.integers(2))
        return self._words[int(self._rng.integers(len(self._words)))]


def answers_of(judged: Judged, topic: int, rng: np.random.Generator) -> Iterator[Json]:
    """Yield every arm's answer, as a line of a labelling run."""
    example, expected = judged
    tools, messages = example.request["tools"], example.request["messages"]
    difficulty = (
        0.5 * len(expected.calls)
        + 0.15 * len(tools)
        + 0.1 * len(messages)
        + 0.2 * math.log1p(len(example.query) / 100)
        + (1.5 if not expected.calls else 0)
    )
    for place, arm in enumerate(ARMS):
        liking = math.sin(topic * (place + 1))
        p_correct = 1 / (1 + math.exp(difficulty - ABILITIES[place] - liking))
        is_right = rng.random() < p_correct
        calls = [
            {"name": call.name, "arguments": {k: v[0] for k, v in call.arguments.items()}}
            for call in expected.calls
        ]
        if not is_right and calls and rng.random() < 0.5:
            calls = calls[:-1]
        elif not is_right:
            calls = [{"name": tools[0]["function"]["name"], "arguments": {}}]
        yield {
            "example_id": example.id,
            "arm": arm,
            "attempt": 0,
            "calls": calls or None,
            "problem": None if calls else "text",
            "input_tokens": len(orjson.dumps(example.request)) // 4,
            "output_tokens": 20 + 30 * len(calls),
            "latency_s": 0.5 + 0.1 * place,
        }
