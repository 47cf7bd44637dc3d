"""What answers used: tokens, and seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Number = TypeVar("Number", np.float32, np.float64, np.int64)


@dataclass(frozen=True, slots=True)
class Usage:
    """What each answer used, (queries, arms) each; NaN where it was not counted."""

    input_tokens: Floats
    output_tokens: Floats
    seconds: Floats

    @property
    def tokens_counted(self) -> NDArray[np.bool_]:
        """Where both counts of tokens are known, (queries, arms)."""
        return ~np.isnan(self.input_tokens + self.output_tokens)

    def matrices(self) -> tuple[Floats, Floats, Floats]:
        """Return input tokens, output tokens and seconds."""
        return self.input_tokens, self.output_tokens, self.seconds

    def take(self, rows: Sequence[int]) -> Usage:
        """Return some of the queries, in the order given."""
        return Usage(*(matrix[list(rows)] for matrix in self.matrices()))

    def columns(self, places: Sequence[int | None]) -> Usage:
        """Return some of the arms, in the order given; None is one that was not asked."""
        return Usage(*(columns_of(matrix, places, np.nan) for matrix in self.matrices()))


def columns_of(
    matrix: NDArray[Number], places: Sequence[int | None], blank: float
) -> NDArray[Number]:
    """Return columns of a matrix, (rows, columns); one of `blank` where the place is None."""
    padded = np.pad(matrix, ((0, 0), (0, 1)), constant_values=blank)
    return padded[:, [-1 if place is None else place for place in places]]


def joined(parts: Sequence[Usage]) -> Usage:
    """Return the queries of several, one after the other."""
    columns = zip(*(part.matrices() for part in parts), strict=True)
    return Usage(*(np.concatenate(matrices) for matrices in columns))
