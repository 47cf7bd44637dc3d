"""The verifier's next step, with graphs whose output can be computed by hand."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from router_service.artifact import MANIFEST, Artifact
from router_service.core.errors import ArtifactError
from router_service.verifier.answer_features import Beliefs, Candidates
from router_service.verifier.graphs import StepTerms, Verifier
from tests.candidates import answer, ask, read, write_verifier

LIKELY = (0.6, 0.8, 0.9)

QUESTION = ask("Forecast for Oslo?")
OSLO, LIMA = (read(QUESTION, answer({"city": city})) for city in ("Oslo", "Lima"))


@pytest.fixture(scope="module")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> Verifier:
    """Return a verifier of three arms and no features of the request."""
    folder = tmp_path_factory.mktemp("verifier")
    return Verifier(folder, write_verifier(folder, request_features=0, arms=3))


@pytest.fixture
def beliefs(verifier: Verifier) -> Beliefs:
    """Return what is known before an arm is asked."""
    return verifier.beliefs((), LIKELY)


def candidates(**cities: str) -> Candidates:
    """Return the answers of arms `a0`, `a1` and `a2`, which name a city each."""
    known = {"Oslo": OSLO, "Lima": LIMA}
    return Candidates.of(QUESTION, {int(arm[1]): known[city] for arm, city in cities.items()})


def test_first_steps_differ_by_what_waiting_costs(verifier: Verifier) -> None:
    """First steps are remembered. At equal costs, two arms are asked only if waiting costs."""
    unsure, costs, arms = verifier.beliefs((), (0.4, 0.4, 0.4)), np.full(3, 0.05), [0, 1, 2]
    hurried = StepTerms(waits=costs)
    for _ in range(2):
        assert len(verifier.choose_step(unsure, candidates(), costs, arms, hurried).ask) == 2
        assert len(verifier.choose_step(unsure, candidates(), costs, arms).ask) == 1


def copied(verifying_artifact: Path, folder: Path) -> Path:
    """Return a copy of the artifact with a verifier, which a test may damage."""
    return Path(shutil.copytree(verifying_artifact, folder / "artifact"))


@pytest.mark.parametrize(
    ("field", "problem"),
    [("files", "no hash for"), ("reliabilities", "a value for each arm")],
)
def test_manifest_with_an_inconsistent_verifier_is_refused(
    verifying_artifact: Path, tmp_path: Path, field: str, problem: str
) -> None:
    """Both graphs need a hash, and every arm needs a reliability."""
    directory = copied(verifying_artifact, tmp_path)
    values = json.loads((directory / MANIFEST).read_text())
    if field == "files":
        del values["files"]["verifier-gain.onnx"]
    else:
        values["verifier"]["reliabilities"].pop()
    (directory / MANIFEST).write_text(json.dumps(values))
    with pytest.raises(ArtifactError, match=problem):
        Artifact.load(directory)
