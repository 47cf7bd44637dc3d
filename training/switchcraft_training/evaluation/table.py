"""Judged queries with what every arm answered: what routers learn from and are measured on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from switchcraft_training.records import Example

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Table:
    """Queries in rows, arms in columns, (queries, arms) each.

    `correct` is the probability of a correct answer, 0 or 1 where a query was asked once, NaN
    where the arm was not asked; `cost_usd` is what the recorded answer cost.
    """

    examples: tuple[Example, ...]
    arms: tuple[str, ...]
    correct: Floats
    cost_usd: Floats

    def take(self, rows: Sequence[int]) -> Table:
        """Return some of the queries, in the order given."""
        chosen = list(rows)
        examples = tuple(self.examples[row] for row in chosen)
        return Table(examples, self.arms, self.correct[chosen], self.cost_usd[chosen])
