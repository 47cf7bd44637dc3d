"""Judged answers as matrices: queries in rows, models in columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from training.checking.calls import check
from training.records import Answer, Example, Expected

NO_ANSWER = "no_answer"


@dataclass(frozen=True, slots=True)
class Labels:
    """Correctness and token counts, (queries, arms) each; NaN where nothing was recorded."""

    arms: tuple[str, ...]
    correct: NDArray[np.float32]
    input_tokens: NDArray[np.float64]
    output_tokens: NDArray[np.float64]


def label_matrix(
    judged: Sequence[tuple[Example, Expected]],
    arms: Sequence[str],
    answers_of: Callable[[str], Iterable[Answer]],
) -> Labels:
    """Judge every arm's answers to the examples; answers to other queries are passed over."""
    shape = (len(judged), len(arms))
    correct = np.full(shape, np.nan, dtype=np.float32)
    tokens_in, tokens_out = np.full(shape, np.nan), np.full(shape, np.nan)
    row_of = {example.id: row for row, (example, _) in enumerate(judged)}
    for column, arm in enumerate(tqdm(arms, desc="judging", unit="model")):
        for answer in answers_of(arm):
            row = row_of.get(answer.example_id)
            if row is not None:
                correct[row, column] = is_correct(*judged[row], answer)
                tokens_in[row, column] = _or_nan(answer.input_tokens)
                tokens_out[row, column] = _or_nan(answer.output_tokens)
    return Labels(tuple(arms), correct, tokens_in, tokens_out)


def is_correct(example: Example, expected: Expected, answer: Answer) -> bool:
    """Judge one answer; a provider's failure is no answer, not even where none was expected."""
    if answer.problem == NO_ANSWER:
        return False
    return check(example.request["tools"], expected, answer.calls).correct


def _or_nan(count: int | None) -> float:
    return float("nan") if count is None else float(count)
