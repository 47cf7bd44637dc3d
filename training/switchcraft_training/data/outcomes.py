"""Sources of outcomes, and the table that combines them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from router_service.checker.comparison import IsParaphrase
from switchcraft_training.checking import check_answer
from switchcraft_training.data.table import Floats, Table
from switchcraft_training.progress import track
from switchcraft_training.records import Answer, Example, Judged, Outcome


class OutcomeSource(Protocol):
    """Source of queries, and of the outcomes of the models that were asked them.

    Every method raises DataError if a row cannot be read.
    """

    def arms(self) -> list[str]:
        """Return the models that were asked."""
        ...

    def examples(self) -> Iterable[Example]:
        """Read the queries."""
        ...

    def calls(self) -> Mapping[str, int]:
        """Return the number of calls that each query requires, by query id, if known."""
        ...

    def outcomes(self, arm: str) -> Iterable[Outcome]:
        """Read the outcome of every attempt of a model."""
        ...


class AnswerSource(Protocol):
    """Source of queries with expected calls, and of models' answers.

    Every method raises DataError if a row cannot be read.
    """

    def arms(self) -> list[str]:
        """Return the models with recorded answers."""
        ...

    def judged(self) -> Iterable[Judged]:
        """Read the queries with the expected calls."""
        ...

    def answers(self, arm: str) -> Iterable[Answer]:
        """Read the answers of a model."""
        ...


@dataclass(frozen=True, slots=True)
class RenamedArms:
    """A source of answers in which some models have other names.

    `renamed` has the new name of each renamed model, by its name in the source.
    """

    source: AnswerSource
    renamed: Mapping[str, str]

    def arms(self) -> list[str]:
        """Return the models with recorded answers, by their new names."""
        return [self.renamed.get(arm, arm) for arm in self.source.arms()]

    def judged(self) -> Iterable[Judged]:
        """Read the queries with the expected calls."""
        return self.source.judged()

    def answers(self, arm: str) -> Iterator[Answer]:
        """Read the answers of a model, by its new name."""
        recorded = {new: old for old, new in self.renamed.items()}
        for answer in self.source.answers(recorded.get(arm, arm)):
            yield replace(answer, arm=arm)


@dataclass(frozen=True, slots=True)
class CheckedAnswers:
    """Outcomes of recorded answers, as judged by the checker.

    `judged` holds the queries by id; answers to other queries are ignored. `alike` compares
    paraphrases.
    """

    source: AnswerSource
    judged: Mapping[str, Judged]
    alike: IsParaphrase | None = None

    @classmethod
    def of(cls, source: AnswerSource, alike: IsParaphrase | None = None) -> CheckedAnswers:
        """Read a source's queries, and return the outcomes of its answers."""
        return cls(source, {entry.example.id: entry for entry in source.judged()}, alike)

    def arms(self) -> list[str]:
        """Return the models with recorded answers."""
        return self.source.arms()

    def examples(self) -> list[Example]:
        """Return the queries."""
        return [entry.example for entry in self.judged.values()]

    def calls(self) -> dict[str, int]:
        """Return the number of calls that each query requires; 1 if any call is correct."""
        return {
            name: len(entry.expected.calls) + entry.expected.any_call
            for name, entry in self.judged.items()
        }

    def outcomes(self, arm: str) -> Iterator[Outcome]:
        """Judge the answers of a model; raises SchemaError if a tool has an invalid schema."""
        for answer in self.source.answers(arm):
            entry = self.judged.get(answer.example_id)
            if entry is not None:
                yield Outcome(
                    example_id=answer.example_id,
                    arm=arm,
                    correct=check_answer(*entry, answer, self.alike).correct,
                    input_tokens=answer.input_tokens,
                    output_tokens=answer.output_tokens,
                    seconds=answer.seconds,
                    attempt=answer.attempt,
                )


class _Means:
    """Running mean of each cell of a matrix; unknown values (None) are ignored."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self._totals = np.zeros(shape)
        self.counts = np.zeros(shape, dtype=np.int64)

    def add(self, row: int, column: int, value: float | None) -> None:
        if value is not None:
            self._totals[row, column] += value
            self.counts[row, column] += 1

    def values(self) -> Floats:
        return self._totals / np.where(self.counts == 0, np.nan, self.counts)


def tabulate_outcomes(
    examples: Sequence[Example],
    arms: Sequence[str],
    outcomes_of: Callable[[str], Iterable[Outcome]],
) -> Table:
    """Return a table of every arm's outcomes for `examples`; other outcomes are ignored.

    Raises the errors of `outcomes_of`.
    """
    shape = len(examples), len(arms)
    correct, tokens_in, tokens_out, seconds = (_Means(shape) for _ in range(4))
    row_of = {example.id: row for row, example in enumerate(examples)}
    for column, arm in enumerate(track(arms, "judged", len(arms), "models")):
        for outcome in outcomes_of(arm):
            row = row_of.get(outcome.example_id)
            if row is not None:
                correct.add(row, column, outcome.correct)
                tokens_in.add(row, column, outcome.input_tokens)
                tokens_out.add(row, column, outcome.output_tokens)
                seconds.add(row, column, outcome.seconds)
    return Table(
        examples=tuple(examples),
        arms=tuple(arms),
        # Single precision, like saved tables: judged labels and reloaded labels must be equal.
        correct=correct.values().astype(np.float32).astype(np.float64),
        attempts=correct.counts.astype(np.float64),
        input_tokens=tokens_in.values(),
        output_tokens=tokens_out.values(),
        seconds=seconds.values(),
    )
