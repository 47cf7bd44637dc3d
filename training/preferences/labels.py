"""Judged answers as matrices: queries in rows, models in columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from training.checking.answers import judge
from training.checking.values import Alike
from training.records import Answer, Example, Expected


@dataclass(frozen=True, slots=True)
class Labels:
    """What arms answered, (queries, arms) each; NaN where nothing was recorded.

    `correct` is the probability of a correct answer: the share of `attempts`, 0 or 1 where a query
    was asked once (paper, appendix on probabilistic labels). Token counts are means an attempt.
    """

    arms: tuple[str, ...]
    correct: NDArray[np.float32]
    attempts: NDArray[np.int64]
    input_tokens: NDArray[np.float64]
    output_tokens: NDArray[np.float64]

    def take(self, rows: Sequence[int]) -> Labels:
        """Return some of the queries, in the order given."""
        chosen = list(rows)
        return Labels(
            self.arms,
            self.correct[chosen],
            self.attempts[chosen],
            self.input_tokens[chosen],
            self.output_tokens[chosen],
        )


class _Means:
    """Means of what is added, cell by cell; what is unknown does not count."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self._totals = np.zeros(shape)
        self.counts = np.zeros(shape, dtype=np.int64)

    def add(self, row: int, column: int, value: float | None) -> None:
        if value is not None:
            self._totals[row, column] += value
            self.counts[row, column] += 1

    def values(self) -> NDArray[np.float64]:
        known = np.where(self.counts == 0, np.nan, self.counts)
        return self._totals / known


def label_matrix(
    judged: Sequence[tuple[Example, Expected]],
    arms: Sequence[str],
    answers_of: Callable[[str], Iterable[Answer]],
    alike: Alike | None = None,
) -> Labels:
    """Judge every arm's answers to the examples; answers to other queries are passed over.

    `alike` tells paraphrases. Raises SchemaError where a tool's schema cannot be interpreted.
    """
    correct, tokens_in, tokens_out = (_Means((len(judged), len(arms))) for _ in range(3))
    row_of = {example.id: row for row, (example, _) in enumerate(judged)}
    for column, arm in enumerate(tqdm(arms, desc="judging", unit="model")):
        for answer in answers_of(arm):
            row = row_of.get(answer.example_id)
            if row is not None:
                correct.add(row, column, judge(*judged[row], answer, alike).correct)
                tokens_in.add(row, column, answer.input_tokens)
                tokens_out.add(row, column, answer.output_tokens)
    return Labels(
        arms=tuple(arms),
        correct=correct.values().astype(np.float32),
        attempts=correct.counts,
        input_tokens=tokens_in.values(),
        output_tokens=tokens_out.values(),
    )
