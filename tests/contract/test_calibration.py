"""Training evaluates with the same calibrated probabilities that the gateway uses."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from router_service.artifact import SHIPPED, Artifact, Manifest, file_hashes, save_manifest
from router_service.predictor.model import Classifier, Platt
from router_service.predictor.packing import Packer
from router_service.router import Router
from switchcraft_training.config import load_config
from switchcraft_training.models.export import write_canaries


def shifted(arms: int) -> Platt:
    """Return a calibration that clearly changes every probability, differently for each arm."""
    return Platt(slopes=(0.5,) * arms, intercepts=tuple(0.1 * arm for arm in range(arms)))


@pytest.fixture
def calibrated(tmp_path: Path) -> Path:
    """Write the shipped artifact with a calibration, and its canaries as training writes them."""
    folder = Path(shutil.copytree(SHIPPED, tmp_path / "artifact"))
    manifest = Artifact.load(folder).manifest
    calibration = shifted(len(manifest.arms))
    write_canaries(folder, load_config(Path("configs/frontier-2025-12.yaml")), calibration)
    rewrite(folder, manifest.model_copy(update={"calibration": calibration}))
    return folder


def rewrite(folder: Path, manifest: Manifest) -> None:
    """Save a manifest with the current hashes of the files."""
    save_manifest(folder, manifest.model_copy(update={"files": file_hashes(folder)}))


def test_training_and_service_use_the_same_probabilities(calibrated: Path) -> None:
    """Training measures the same calibrated probabilities that the gateway decides with."""
    router = Router.load(calibrated)
    artifact = router.artifact
    conversations = [canary.conversation for canary in artifact.canaries()]
    packer = Packer(artifact.manifest.packing, artifact.tokenizer)
    packed = [packer.pack(conversation) for conversation in conversations]
    arms = len(artifact.manifest.arms)
    raw = Classifier(artifact.model_path("cpu"), arms=arms).predict(packed)
    trained = shifted(arms)
    assert router.predict_batch(conversations) == trained.apply(raw).tolist()
    assert np.abs(trained.apply(raw) - raw).max() > 0.05
    decided = router.decide_conversation(conversations[0])
    assert list(decided.probabilities.values()) == router.predict_batch(conversations[:1])[0]
