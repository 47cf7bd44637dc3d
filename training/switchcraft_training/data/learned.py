"""Which queries an artifact has learned from, and how many of them a report measures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from router_service.core.artifact import LEARNED, Artifact
from router_service.core.errors import ArtifactError
from switchcraft_training.data.splits import Split, query_digest
from switchcraft_training.records import Example

DIGEST_BYTES = 8
_DIGEST = np.dtype(f"<u{DIGEST_BYTES}")

Digests = NDArray[np.uint64]
"""Digests of (query, tools), (queries,). A digest ignores case and spacing of the query, and the
dataset."""


def digests_of(examples: Iterable[Example]) -> Digests:
    """Return the digest of each query, in the same order."""
    keys = (query_digest(example)[:DIGEST_BYTES] for example in examples)
    return np.frombuffer(b"".join(keys), dtype=_DIGEST)


@dataclass(frozen=True, slots=True)
class LearnedQueries:
    """Sorted digests of queries.

    A digest has 8 bytes, so 150,000 queries take 1.2 MB, and a query collides with one of them by
    chance with a probability of 1e-14.
    """

    digests: Digests

    @classmethod
    def of(cls, examples: Iterable[Example]) -> Self:
        """Return the digests of these queries."""
        return cls(np.unique(digests_of(examples)))

    @classmethod
    def read(cls, artifact: Artifact) -> Self | None:
        """Return what an artifact has learned from; None if the artifact does not record it.

        Raises ArtifactError if its file is not a list of digests.
        """
        if LEARNED not in artifact.manifest.files:
            return None
        path = artifact.directory / LEARNED
        content = path.read_bytes()
        if len(content) % DIGEST_BYTES:
            raise ArtifactError(path, f"is not a list of digests of {DIGEST_BYTES} bytes")
        return cls(np.frombuffer(content, dtype=_DIGEST))

    def write(self, directory: Path) -> None:
        """Write the digests to an artifact's directory; its manifest must be written afterwards."""
        (directory / LEARNED).write_bytes(self.digests.astype(_DIGEST).tobytes())

    def merge(self, other: LearnedQueries) -> LearnedQueries:
        """Return the digests of both."""
        return LearnedQueries(np.union1d(self.digests, other.digests))

    def count(self, digests: Digests) -> int:
        """Return how many of the queries with these digests were learned from."""
        return int(np.isin(digests, self.digests).sum())


@dataclass(frozen=True, slots=True)
class TrainingOverlap:
    """How many of a report's queries its router has learned from; None if that is unknown."""

    queries: int
    learned: int | None
    share: float | None

    @classmethod
    def of_artifact(cls, artifact: Artifact, digests: Digests) -> Self:
        """Return the overlap of an artifact's training with queries that it is measured on."""
        known = LearnedQueries.read(artifact)
        return cls._counted(len(digests), None if known is None else known.count(digests))

    @classmethod
    def of_splits(cls, examples: Sequence[Example], splits: Sequence[Split]) -> Self:
        """Return the overlap of each split's test part with its other parts, summed."""
        learned = 0
        for split in splits:
            known = (*split.train, *split.validation, *split.teaching)
            seen = LearnedQueries.of(examples[row] for row in known)
            learned += seen.count(digests_of(examples[row] for row in split.test))
        return cls._counted(sum(len(split.test) for split in splits), learned)

    @classmethod
    def _counted(cls, queries: int, learned: int | None) -> Self:
        return cls(queries, learned, None if learned is None else learned / queries)
