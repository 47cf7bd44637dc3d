"""A recorded run of the shipped arms, and a copy of the shipped artifact that was trained on it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from router_service.artifact import SHIPPED, Artifact, save_manifest
from switchcraft_training.config import trained_config
from switchcraft_training.data.labels import RecordedLabels
from switchcraft_training.dataset import load_dataset
from switchcraft_training.models import branches
from tests.training.onboarding.cases import ELDER, OTHER_ROWS, ROWS, answer
from tests.training.runs import write_run
from tests.training.verifiers import one_thread


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record the answers of the shipped arms: some are better at calls, some at not calling.

    An older version of the benchmark has the same queries and further ones, and another model.
    """
    rng = np.random.default_rng(0)
    lines = [
        answer(row, arm, right=bool(rng.random() < (0.9 if is_call == (place % 2 == 0) else 0.6)))
        for row in ROWS
        for place, arm in enumerate(Artifact.load(SHIPPED).manifest.arms)
        for is_call in [bool(row.expected.calls)]
    ]
    root = tmp_path_factory.mktemp("recorded")
    write_run(root / "run", ROWS, lines)
    old = [
        row._replace(example=replace(row.example, dataset="old")) for row in (*ROWS, *OTHER_ROWS)
    ]
    write_run(
        root / "old", old, [answer(row, ELDER, right=bool(rng.random() < 0.7)) for row in old]
    )
    return root


@pytest.fixture(scope="session")
def artifact(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the shipped artifact whose training data is the recorded run.

    It has a graph for GPUs, too: a copy of the other one.
    """
    directory = tmp_path_factory.mktemp("artifact") / "base"
    shutil.copytree(SHIPPED, directory)
    shutil.copyfile(directory / "model.int8.onnx", directory / "model.fp16.onnx")
    manifest = Artifact.load(directory).manifest
    config = yaml.safe_load(manifest.provenance.config) | {
        "source": {"format": "labelled", "path": "run/rows.jsonl", "answers": "run"},
        "also": [{"format": "labelled", "path": "old/rows.jsonl", "answers": "old"}],
        "checking": {},
    }
    provenance = manifest.provenance.model_copy(update={"config": yaml.safe_dump(config)})
    models = {"cpu": "model.int8.onnx", "cuda": "model.fp16.onnx"}
    manifest = manifest.model_copy(update={"provenance": provenance, "models": models})
    RecordedLabels.of(load_dataset(trained_config(manifest), data)).write(directory)
    save_manifest(directory, manifest)
    return directory


@pytest.fixture(scope="module", autouse=True)
def small_branches() -> Iterator[None]:
    """Train small branches in one thread: no test depends on their quality."""
    with pytest.MonkeyPatch.context() as patch, one_thread():
        patch.setattr(branches, "TREES", 20)
        patch.setattr(branches, "MAX_STEPS", 50)
        yield
