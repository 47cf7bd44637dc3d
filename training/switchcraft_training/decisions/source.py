"""A gateway's log, or what was imported of one, as a source of training."""

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
    """Queries with what came of asking arms, as an `OutcomeSource`."""

    queries: Sequence[Query]

    @classmethod
    def of_log(cls, path: Path, *, weak_evidence: bool, alike: IsParaphrase | None) -> Traffic:
        """Read a decision log, and say what of it teaches; DataError where a line is none."""
        found = read_queries(read_log(path), weak_evidence=weak_evidence, alike=alike)
        log.info("%s: %s", path, found.summary())
        return cls(found.queries)

    @classmethod
    def of_rows(cls, path: Path) -> Traffic:
        """Read what was imported of a log; DataError where a line is none."""
        return cls(tuple(read_queries_file(path)))

    def arms(self) -> list[str]:
        """Return the arms of which an answer was judged."""
        return sorted({outcome.arm for query in self.queries for outcome in query.outcomes})

    def examples(self) -> list[Example]:
        """Return the queries."""
        return [query.example for query in self.queries]

    def calls(self) -> dict[str, int]:
        """Return how many calls queries ask for, where that is known."""
        return {query.example.id: query.calls for query in self.queries if query.calls is not None}

    def outcomes(self, arm: str) -> Iterator[Outcome]:
        """Yield what came of asking an arm, every answer that was judged."""
        for query in self.queries:
            yield from (outcome for outcome in query.outcomes if outcome.arm == arm)
