"""Outcomes as matrices: queries in rows, models in columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from switchcraft_training.profiling.usage import Usage, columns_of
from switchcraft_training.profiling.usage import joined as joined_usage
from switchcraft_training.records import Example, Outcome


@dataclass(frozen=True, slots=True)
class Labels:
    """What came of asking arms, (queries, arms) each; NaN where nothing was recorded.

    `correct` is the probability of a correct answer: the share of `attempts`, 0 or 1 where a query
    was asked once (paper, appendix on probabilistic labels). `usage` has means an attempt.
    """

    arms: tuple[str, ...]
    correct: NDArray[np.float32]
    attempts: NDArray[np.int64]
    usage: Usage

    def take(self, rows: Sequence[int]) -> Labels:
        """Return some of the queries, in the order given."""
        chosen = list(rows)
        return Labels(
            self.arms, self.correct[chosen], self.attempts[chosen], self.usage.take(chosen)
        )

    def columns(self, arms: Sequence[str]) -> Labels:
        """Return these arms, in the order given; one that is not here was not asked."""
        place = {arm: column for column, arm in enumerate(self.arms)}
        places = [place.get(arm) for arm in arms]
        return Labels(
            arms=tuple(arms),
            correct=columns_of(self.correct, places, np.nan),
            attempts=columns_of(self.attempts, places, 0),
            usage=self.usage.columns(places),
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
    examples: Sequence[Example],
    arms: Sequence[str],
    outcomes_of: Callable[[str], Iterable[Outcome]],
) -> Labels:
    """Gather every arm's outcomes; those of other queries than the examples are passed over.

    Raises what `outcomes_of` does.
    """
    correct, tokens_in, tokens_out, seconds = (_Means((len(examples), len(arms))) for _ in range(4))
    row_of = {example.id: row for row, example in enumerate(examples)}
    for column, arm in enumerate(tqdm(arms, desc="labels", unit="model")):
        for outcome in outcomes_of(arm):
            row = row_of.get(outcome.example_id)
            if row is not None:
                correct.add(row, column, outcome.correct)
                tokens_in.add(row, column, outcome.input_tokens)
                tokens_out.add(row, column, outcome.output_tokens)
                seconds.add(row, column, outcome.seconds)
    return Labels(
        arms=tuple(arms),
        correct=correct.values().astype(np.float32),
        attempts=correct.counts,
        usage=Usage(tokens_in.values(), tokens_out.values(), seconds.values()),
    )


def joined(parts: Sequence[Labels]) -> Labels:
    """Return the queries of several, one after the other; all have the same arms."""
    return Labels(
        arms=parts[0].arms,
        correct=np.concatenate([part.correct for part in parts]),
        attempts=np.concatenate([part.attempts for part in parts]),
        usage=joined_usage([part.usage for part in parts]),
    )
