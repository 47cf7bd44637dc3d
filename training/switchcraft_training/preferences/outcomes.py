"""Where outcomes come from: recorded as such, or recorded answers that the checker judges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from switchcraft_training.checking import IsParaphrase, check_answer
from switchcraft_training.records import Answer, Example, Judged, Outcome


class OutcomeSource(Protocol):
    """Queries, with what came of asking arms. Every method raises DataError at a bad row."""

    def arms(self) -> list[str]:
        """Return the models that were asked."""
        ...

    def examples(self) -> Iterable[Example]:
        """Read the queries."""
        ...

    def calls(self) -> Mapping[str, int]:
        """Return how many calls queries ask for, by id, where that is known."""
        ...

    def outcomes(self, arm: str) -> Iterable[Outcome]:
        """Read what came of asking a model, every attempt."""
        ...


class AnswerSource(Protocol):
    """Queries with what is expected, and what models answered to them; raises as above."""

    def arms(self) -> list[str]:
        """Return the models whose answers there are."""
        ...

    def judged(self) -> Iterable[Judged]:
        """Read the queries with what is expected."""
        ...

    def answers(self, arm: str) -> Iterable[Answer]:
        """Read what a model answered."""
        ...


@dataclass(frozen=True, slots=True)
class Checked:
    """Recorded answers, judged by the checker; `alike` tells paraphrases.

    `judged` are the queries by id; answers to others are passed over.
    """

    source: AnswerSource
    judged: Mapping[str, Judged]
    alike: IsParaphrase | None = None

    @classmethod
    def of(cls, source: AnswerSource, alike: IsParaphrase | None = None) -> Checked:
        """Read a source's queries."""
        return cls(source, {entry.example.id: entry for entry in source.judged()}, alike)

    def arms(self) -> list[str]:
        """Return the models whose answers there are."""
        return self.source.arms()

    def examples(self) -> list[Example]:
        """Return the queries."""
        return [entry.example for entry in self.judged.values()]

    def calls(self) -> dict[str, int]:
        """Return how many calls each query asks for; one where any call is right."""
        return {
            name: len(entry.expected.calls) + entry.expected.any_call
            for name, entry in self.judged.items()
        }

    def outcomes(self, arm: str) -> Iterator[Outcome]:
        """Judge what a model answered; SchemaError where a tool's schema makes no sense."""
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
