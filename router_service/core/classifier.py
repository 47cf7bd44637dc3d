"""Packed conversations -> calibrated probabilities (batch, arms), by an artifact's graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from router_service.core.calibration import IDENTITY, Calibration
from router_service.core.errors import ArtifactError
from router_service.core.graph import Graph
from router_service.core.packing import Packed

BUCKET_TOKENS = 64
"""Rows of one batch differ by less than this in length, so that little of it is padding."""
MAX_BATCH_TOKENS = 32_768
"""Of one run, padding included: 64 rows of 512 tokens."""


class Classifier:
    """Runs an artifact's graph; may be shared by threads, and releases the GIL while it runs.

    The one place where what a graph says becomes a probability: service, canaries and evaluation
    have theirs from here.
    """

    def __init__(
        self,
        model_path: Path,
        *,
        arms: int,
        calibration: Calibration = IDENTITY,
        device: str = "cpu",
        threads: int = 1,
        graph: Graph | None = None,
    ) -> None:
        """Load the graph, or use one that was loaded from the same file for the same device.

        Raises ArtifactError if it does not load or fit the arms. Without a calibration,
        probabilities are as the graph says, and a calibration is fitted on them.
        """
        self.graph = graph or Graph(model_path, device=device, threads=threads)
        if self.graph.arms != arms:
            raise ArtifactError(model_path, f"has {self.graph.arms} outputs for {arms} arms")
        # On CPUs batches would change a row's last bits, and two threads with a row each get as
        # much done: 603 rows of 90 tokens a second, and 690 in batches of 8.
        self._batched = device != "cpu" and self.graph.rows_are_independent
        self._calibration = calibration

    def predict(self, packed: Sequence[Packed]) -> NDArray[np.float64]:
        """Return the probability that each arm answers correctly, (len(packed), arms).

        A decision does not depend on its neighbours: rows run one at a time, or on a GPU, where
        the graph allows it, padded and masked among rows of like length.
        """
        lengths = [len(row.token_ids) for row in packed]
        batches = batches_by_length(lengths) if self._batched else ([i] for i in range(len(packed)))
        return self._calibration.apply(answers(self.graph, packed, batches))


def answers(
    graph: Graph, packed: Sequence[Packed], batches: Iterable[Sequence[int]]
) -> NDArray[np.float64]:
    """Return what a graph says of every row, (len(packed), arms), asked in these batches."""
    said = np.empty((len(packed), graph.arms), dtype=np.float64)
    for rows in batches:
        said[rows] = graph.run(*padded([packed[row] for row in rows]))
    return said


def batches_by_length(
    lengths: Sequence[int], max_batch_tokens: int = MAX_BATCH_TOKENS
) -> Iterator[list[int]]:
    """Yield rows' indices in batches of like length, none larger than the bound once padded.

    A row that is longer than the bound is a batch of its own.
    """
    by_length = sorted(range(len(lengths)), key=lengths.__getitem__)
    for _, bucket in groupby(by_length, key=lambda row: lengths[row] // BUCKET_TOKENS):
        rows = list(bucket)
        size = max(1, max_batch_tokens // max(1, lengths[rows[-1]]))
        yield from (rows[start : start + size] for start in range(0, len(rows), size))


def padded(
    rows: Sequence[Packed],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """Return ids and mask (rows, longest), and counts (rows, features)."""
    longest = max(len(row.token_ids) for row in rows)
    input_ids = np.zeros((len(rows), longest), dtype=np.int64)
    attention_mask = np.zeros_like(input_ids)
    for i, row in enumerate(rows):
        input_ids[i, : len(row.token_ids)] = row.token_ids
        attention_mask[i, : len(row.token_ids)] = 1
    return input_ids, attention_mask, np.array([row.features for row in rows], dtype=np.float32)
