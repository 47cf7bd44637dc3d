"""The shipped artifact with invented judgements of its recorded answers."""

from __future__ import annotations

import shutil
from itertools import combinations
from pathlib import Path

import numpy as np

from router_service.core.artifact import MANIFEST, SHIPPED, Artifact, file_hashes, save_manifest
from router_service.core.held_out import HELD_OUT, HeldOut
from router_service.core.model import Floats
from router_service.core.simulation import JudgedAnswers, candidate_sets, quantize


def invented_judgements(correct: Floats, probabilities: Floats, gain_graph: bytes) -> JudgedAnswers:
    """Return judgements that tell right answers from wrong ones, the better the more there are."""
    rng = np.random.default_rng(0)
    queries, arms = correct.shape
    noise = rng.normal(size=correct.shape)
    columns = [
        np.clip(0.5 + (correct[:, arm] - 0.5) * 0.8 + noise[:, arm] / 4 / len(each), 0, 1)
        for each in candidate_sets(arms)
        for arm in each
    ]
    pairs = [*combinations(range(arms), 2)]
    is_right = correct == 1
    return JudgedAnswers(
        p_correct=quantize(np.column_stack(columns)),
        is_same=np.column_stack([is_right[:, a] & is_right[:, b] for a, b in pairs]),
        is_text=rng.random(correct.shape) < 0.1,
        probabilities=probabilities.astype(np.float32),
        p_no_call=rng.random(queries).astype(np.float32),
        folds=np.arange(queries) % 5,
        reliabilities=np.tile(correct.mean(axis=0), (5, 1)),
        gain_graphs=(gain_graph,) * 5,
    )


def judged_artifact(directory: Path) -> Artifact:
    """Write the shipped artifact with judgements to a directory, and load it."""
    shipped = Artifact.load(SHIPPED)
    assert shipped.manifest.verifier is not None
    shutil.copytree(SHIPPED, directory)
    held_out = HeldOut.read(directory / HELD_OUT)
    gain_graph = (directory / shipped.manifest.verifier.gain_graph).read_bytes()
    judged = invented_judgements(held_out.correct, held_out.probabilities, gain_graph)
    assert held_out.add_judgements(directory, judged, held_out.correct, held_out.folds)
    changed = {"files": file_hashes(directory)}
    save_manifest(directory, shipped.manifest.model_copy(update=changed))
    assert (directory / MANIFEST).exists()
    return Artifact.load(directory)
