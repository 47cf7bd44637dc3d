"""Tables with a known best routing: the words of a query decide which arm is correct."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from router_service.predictor.packing import PackingSpec
from router_service.predictor.words import Ids
from switchcraft_training.baselines.inputs import Views
from switchcraft_training.data.splits import Split
from switchcraft_training.data.table import Floats, Table
from switchcraft_training.records import Example

ARMS = ("small", "large")
COSTS_USD = (1e-5, 1e-3)
EASY = "river stone cloud engine harvest".split()
HARD = "violin market bridge candle forest".split()
FILLERS = "alpha beta gamma delta epsilon".split()
SPLIT = Split(tuple(range(120)), tuple(range(120, 160)), tuple(range(160, 240)))


def example(number: int, text: str, tools: int = 1, *, category: str = "simple") -> Example:
    """Return a query with tools that have no parameters."""
    function = {"name": "look", "parameters": {"type": "object", "properties": {}}}
    request = {
        "messages": [{"role": "user", "content": text}],
        "tools": [{"type": "function", "function": function}] * tools,
    }
    return Example(f"q{number}", category, request, "d")


def learnable(queries: int = 240, seed: int = 0) -> Table:
    """Return easy and hard queries; the small arm is correct only on the easy ones.

    The large arm is correct on nine of ten. Hard queries have other words, three tools and another
    category.
    """
    rng = np.random.default_rng(seed)
    is_hard = rng.integers(0, 2, queries).astype(bool)
    examples = tuple(
        example(
            number,
            " ".join([*rng.choice(HARD if hard else EASY, 2), *rng.choice(FILLERS, 2)]),
            tools=3 if hard else 1,
            category="hard" if hard else "easy",
        )
        for number, hard in enumerate(is_hard)
    )
    large = (rng.random(queries) < 0.9).astype(float)
    correct = np.column_stack([(~is_hard).astype(float), large])
    return Table(examples, ARMS, correct, np.tile(COSTS_USD, (queries, 1)))


def views(budget_tokens: int = 64) -> Views:
    """Return views through a tokenizer with one id for each word."""
    words = ["[UNK]", "[CLS]", "[SEP]", *EASY, *HARD, *FILLERS, *ARMS, "user", "look"]
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    return Views(PackingSpec(budget_tokens=budget_tokens, tool_budget_tokens=8), tokenizer)


class CountingEmbedder:
    """Embedder that counts the known token ids, scaled to length 1."""

    def __call__(self, rows: Sequence[Ids]) -> Floats:
        """Return (rows, 32)."""
        counts = np.stack([np.bincount(row, minlength=32).astype(float) for row in rows])
        counts[:, 0] = 0.1  # A vector must not have length 0.
        vectors: Floats = counts / np.linalg.norm(counts, axis=1, keepdims=True)
        return vectors


def without_labels(table: Table, rows: Sequence[int], arm: int) -> Table:
    """Return a table without the labels of an arm for some of the queries."""
    correct, cost_usd = table.correct.copy(), table.cost_usd.copy()
    correct[list(rows), arm] = np.nan
    cost_usd[list(rows), arm] = np.nan
    return Table(table.examples, table.arms, correct, cost_usd)
