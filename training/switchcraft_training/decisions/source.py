"""A gateway's log, or the rows imported from it, as a training source."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from switchcraft_training.checking import IsParaphrase
from switchcraft_training.decisions.log import read_log
from switchcraft_training.decisions.queries import Query, read_queries
from switchcraft_training.decisions.rows import read_queries_file
from switchcraft_training.records import Example, Outcome

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Queries from a decision log with the outcomes of arms, as an `OutcomeSource`."""

    queries: Sequence[Query]

    @classmethod
    def of_log(cls, path: Path, *, weak_evidence: bool, alike: IsParaphrase | None) -> Traffic:
        """Read a decision log and log a summary; raises DataError if a line is invalid."""
        found = read_queries(read_log(path), weak_evidence=weak_evidence, alike=alike)
        log.info("%s: %s", path, found.summary())
        return cls(found.queries)

    @classmethod
    def of_rows(cls, path: Path) -> Traffic:
        """Read the rows imported from a log; raises DataError if a line is invalid."""
        return cls(tuple(read_queries_file(path)))

    def arms(self) -> list[str]:
        """Return the arms with at least one judged answer."""
        return sorted({outcome.arm for query in self.queries for outcome in query.outcomes})

    def examples(self) -> list[Example]:
        """Return the queries."""
        return [query.example for query in self.queries]

    def calls(self) -> dict[str, int]:
        """Return the number of calls that each query requires, if known."""
        return {query.example.id: query.calls for query in self.queries if query.calls is not None}

    def outcomes(self, arm: str) -> Iterator[Outcome]:
        """Yield the outcome of every judged answer of an arm."""
        for query in self.queries:
            yield from (outcome for outcome in query.outcomes if outcome.arm == arm)
