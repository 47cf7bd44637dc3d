"""Which queries and tools an artifact has learned from, and how many of them a report measures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Self

import numpy as np
import orjson
from numpy.typing import NDArray

from router_service.artifact import LEARNED, LEARNED_TOOLS, Artifact
from router_service.core.errors import ArtifactError
from switchcraft_training.data.duplicates import SAME_TOOLS_AGREEMENT, SIGNATURE, tools_signatures
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
class LearnedTools:
    """Signatures of the lists of tools that an artifact has learned from, (lists, SIGNATURE).

    A signature has 256 bytes; the pool of December 2025 has 1,589 different lists (0.4 MB).
    """

    signatures: NDArray[np.uint8]
    _known: dict[bytes, bool] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, examples: Iterable[Example]) -> Self:
        """Return the signatures of these examples' tools."""
        by_tools = {_tools_key(each): each for each in examples if each.request["tools"]}
        if not by_tools:
            return cls(np.empty((0, SIGNATURE), dtype=np.uint8))
        return cls(np.unique(tools_signatures(list(by_tools.values())), axis=0))

    @classmethod
    def read(cls, artifact: Artifact) -> Self | None:
        """Return the tools that an artifact has learned from; None if it does not record them.

        Raises ArtifactError if its file is not a list of signatures.
        """
        content = _read_items(artifact, LEARNED_TOOLS, SIGNATURE, "signatures")
        if content is None:
            return None
        return cls(np.frombuffer(content, dtype=np.uint8).reshape(-1, SIGNATURE))

    def has(self, example: Example) -> bool:
        """Return whether an example's tools, or nearly the same ones, were learned from."""
        key = _tools_key(example)
        if key not in self._known:
            own = tools_signatures([example])
            agreement = (self.signatures == own).mean(axis=1)
            self._known[key] = bool(agreement.max(initial=0.0) >= SAME_TOOLS_AGREEMENT)
        return self._known[key]


def _read_items(artifact: Artifact, name: str, size: int, items: str) -> bytes | None:
    """Return an artifact's file of items of this size in bytes; None if it has no such file."""
    if name not in artifact.manifest.files:
        return None
    path = artifact.directory / name
    content = path.read_bytes()
    if len(content) % size:
        raise ArtifactError(path, f"is not a list of {items} of {size} bytes")
    return content


def _tools_key(example: Example) -> bytes:
    tools = orjson.dumps(example.request["tools"], option=orjson.OPT_SORT_KEYS)
    return blake2b(tools, digest_size=DIGEST_BYTES).digest()


@dataclass(frozen=True, slots=True)
class LearnedQueries:
    """Sorted digests of queries, and the tools that they offered; None if these are unknown.

    A digest has 8 bytes, so 150,000 queries take 1.2 MB, and a query collides with one of them by
    chance with a probability of 1e-14.
    """

    digests: Digests
    tools: LearnedTools | None = None

    @classmethod
    def of(cls, examples: Iterable[Example]) -> Self:
        """Return the digests of these queries, and their tools."""
        known = list(examples)
        return cls(np.unique(digests_of(known)), LearnedTools.of(known))

    @classmethod
    def read(cls, artifact: Artifact) -> Self | None:
        """Return what an artifact has learned from; None if the artifact does not record it.

        Raises ArtifactError if its file is not a list of digests.
        """
        content = _read_items(artifact, LEARNED, DIGEST_BYTES, "digests")
        if content is None:
            return None
        return cls(np.frombuffer(content, dtype=_DIGEST), LearnedTools.read(artifact))

    def write(self, directory: Path) -> None:
        """Write both to an artifact's directory; its manifest must be written afterwards."""
        (directory / LEARNED).write_bytes(self.digests.astype(_DIGEST).tobytes())
        if self.tools is not None:
            (directory / LEARNED_TOOLS).write_bytes(self.tools.signatures.tobytes())

    def merge(self, other: LearnedQueries) -> LearnedQueries:
        """Return the digests and tools of both; the tools are unknown if one's are."""
        tools: LearnedTools | None = None
        if self.tools is not None and other.tools is not None:
            both = np.concatenate([self.tools.signatures, other.tools.signatures])
            tools = LearnedTools(np.unique(both, axis=0))
        return LearnedQueries(np.union1d(self.digests, other.digests), tools)

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
            seen = LearnedQueries(np.unique(digests_of(examples[row] for row in known)))
            learned += seen.count(digests_of(examples[row] for row in split.test))
        return cls._counted(sum(len(split.test) for split in splits), learned)

    @classmethod
    def _counted(cls, queries: int, learned: int | None) -> Self:
        return cls(queries, learned, None if learned is None else learned / queries)
