"""Which recorded models answered an artifact's queries correctly, as numbers only.

A model that joins an artifact is compared with the models whose answers are recorded. With this
file, that needs no recorded answers: only the queries, which are public.
"""

from __future__ import annotations

import zipfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from router_service.artifact import LABELS, Artifact
from router_service.core.errors import ArtifactError
from switchcraft_training.data.learned import Digests, digests_of
from switchcraft_training.data.splits import merge_equal_queries
from switchcraft_training.data.table import Floats, Table

MIN_MODELS = 2
MIN_COMMON = 100
"""A recorded model counts if it answered as many of the artifact's own queries, or half of them if
there are fewer than twice as many."""


@dataclass(frozen=True, slots=True, eq=False)
class RecordedLabels:
    """The labels of all recorded models on the queries that an artifact was measured on.

    `digests` are those of the queries, (queries,), in the order of the held-out predictions.
    `correct` is the share of correct answers, (queries, models); NaN if a model was not asked.
    """

    digests: Digests
    models: tuple[str, ...]
    correct: Floats

    @classmethod
    def of(cls, table: Table) -> Self:
        """Return the labels in a table, in which equal queries of all sources count as one."""
        merged = merge_equal_queries(table)
        measured = merged.take(merged.is_measured)
        common = (~np.isnan(measured.correct)).sum(axis=0)
        columns = np.flatnonzero(common >= min(MIN_COMMON, len(measured) / 2))
        models = tuple(table.arms[column] for column in columns)
        return cls(digests_of(measured.examples), models, measured.correct[:, columns])

    @classmethod
    def read(cls, artifact: Artifact) -> Self:
        """Read the file of an artifact; raises ArtifactError if it has none, or a damaged one."""
        path = artifact.directory / LABELS
        if LABELS not in artifact.manifest.files:
            problem = f"has no {LABELS}, with which new models are compared; train it again"
            raise ArtifactError(artifact.directory, problem)
        try:
            with np.load(path, allow_pickle=False) as file:
                models = tuple(file["models"].tolist())
                return cls(file["digests"], models, file["correct"].astype(np.float64))
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as exc:
            raise ArtifactError(path, f"cannot be read: {exc}") from exc

    def write(self, directory: Path) -> None:
        """Write the file to an artifact's directory; its manifest must be written afterwards.

        Single precision holds the labels exactly, as training judges them.
        """
        with (directory / LABELS).open("wb") as file:
            np.savez_compressed(
                file,
                digests=self.digests,
                models=np.array(self.models),
                correct=self.correct.astype(np.float32),
            )

    def without(self, models: Collection[str]) -> RecordedLabels:
        """Return the labels of the other models."""
        columns = [column for column, each in enumerate(self.models) if each not in models]
        left = tuple(self.models[column] for column in columns)
        return RecordedLabels(self.digests, left, self.correct[:, columns])
