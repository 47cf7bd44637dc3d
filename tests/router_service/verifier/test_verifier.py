"""The verifier's next step, with graphs whose output can be computed by hand."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from router_service.apis.conversation import Json
from router_service.artifact import MANIFEST, Artifact
from router_service.core.errors import ArtifactError
from router_service.predictor.model import Floats
from router_service.verifier.answer_features import Beliefs, Candidates
from router_service.verifier.graphs import StepTerms, Verifier, VerifierSpec
from tests.candidates import answer, ask, read, write_verifier

LIKELY = (0.6, 0.8, 0.9)
COSTS = np.array([0.01, 0.05, 0.4])
"""Costs in units of a correct answer's price."""

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


def test_first_step_asks_the_arm_with_the_largest_net_gain(
    verifier: Verifier, beliefs: Beliefs
) -> None:
    """Without candidates an arm is asked, also if no gain is worth its cost."""
    step = verifier.choose_step(beliefs, candidates(), COSTS, [0, 1, 2])
    assert (step.accept, step.ask) == (None, (1,))
    assert step.gain == pytest.approx(0.8)
    expensive = verifier.choose_step(beliefs, candidates(), COSTS * 1000, [0, 1, 2])
    assert (expensive.accept, expensive.ask) == (None, (0,))


def test_nearly_certain_answer_is_accepted(verifier: Verifier) -> None:
    """A candidate above the limit is accepted even if another arm costs nothing."""
    sure = verifier.beliefs((), (0.9999, 0.8, 0.9))
    step = verifier.choose_step(sure, candidates(a0="Oslo"), COSTS * 0, [1, 2])
    assert step.accept == 0


@pytest.mark.parametrize(
    ("is_last", "costs", "ask"),
    [
        (True, COSTS, (1, 0)),
        (False, COSTS, (1,)),
        (True, COSTS * [100, 1, 1], (1,)),
        (True, COSTS * 0 + [0.16, 0.16, 0.0], (2,)),
    ],
)
def test_two_arms_are_asked_at_once_only_in_the_last_step(
    verifier: Verifier, beliefs: Beliefs, is_last: bool, costs: Floats, ask: tuple[int, ...]
) -> None:
    """If there is no time for a second step, a second arm is asked if it is worth its cost."""
    step = verifier.choose_step(beliefs, candidates(), costs, [0, 1, 2], StepTerms(is_last=is_last))
    assert step.ask == ask


def spec_with(tmp_path: Path, **changes: Json) -> Json:
    """Return a description of a verifier as JSON, with some fields changed."""
    return write_verifier(tmp_path, 0, 3).model_dump(mode="json") | changes


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"candidate_features": ["agreeing", "moon"]}, r"cannot compute the features \['moon'\]"),
        (
            {"calibration": {"method": "platt", "slopes": [1, 1], "intercepts": [0, 0]}},
            "must be for one output",
        ),
        ({"reliabilities": [2]}, "less than or equal to 1"),
        ({"price_usd": float("inf")}, "finite"),
    ],
)
def test_spec_is_checked(tmp_path: Path, changes: Mapping[str, Json], problem: str) -> None:
    """Unknown features, a calibration for several outputs and impossible numbers are refused."""
    with pytest.raises(ValidationError, match=problem):
        VerifierSpec.model_validate(spec_with(tmp_path, **changes))


def test_missing_graph_is_named(tmp_path: Path) -> None:
    """A graph that cannot be loaded is an error that names the file."""
    spec = write_verifier(tmp_path, 0, 3)
    (tmp_path / spec.gain_graph).unlink()
    with pytest.raises(ArtifactError) as caught:
        Verifier(tmp_path, spec)
    assert caught.value.path == tmp_path / spec.gain_graph


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
