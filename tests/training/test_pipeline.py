"""The complete run on a small invented benchmark, in the format of the recorded answers."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from router_service.apis.conversation import Json
from router_service.artifact import MANIFEST, SHIPPED, Artifact, Manifest, read_manifest
from router_service.checker.toolbox import ExpectedCall
from router_service.measurement.goals import find_point, parse_goal, reach_goals
from router_service.measurement.held_out import describe_pool, with_floors
from router_service.policies.verified import Verified
from router_service.router import Router
from switchcraft_training.cli import main
from switchcraft_training.config import load_config, trained_config
from switchcraft_training.data.learned import LearnedQueries, digests_of
from switchcraft_training.dataset import load_dataset, open_source, sources_sha256
from switchcraft_training.pipeline import STAGES, run_stages
from switchcraft_training.records import Example, Expected, Judged
from tests.training.runs import answer_line, function_tool, write_run
from tests.training.verifiers import one_thread

BRANCHES = ("forest", "networks", "lexical", "encoder")


def write_more(folder: Path) -> None:
    """Write a labelling run of two models, with new queries and one of the benchmark's."""
    tool = function_tool("f", {})
    texts = [f"Add {i} to a basket of fruit" for i in range(6)] + ["Forecast for Oslo 0?"]
    rows = [
        Judged(
            Example(f"m{i}", "c", {"messages": [{"role": "user", "content": t}], "tools": [tool]}),
            Expected((ExpectedCall("f", {}),)),
        )
        for i, t in enumerate(texts)
    ]
    answers = [
        answer_line(row.example.id, arm, ("gf"[i % 2 == 0], {}))
        for arm in ("other", "fourth")
        for i, row in enumerate(rows)
    ]
    write_run(folder, rows, answers)


Train = Callable[[], tuple[int, str]]


@pytest.fixture
def train(
    config: Path, benchmark: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> Train:  # fmt: skip
    """Return a function that runs `switchcraft-train run`; it returns the status and the output."""

    def run() -> tuple[int, str]:
        out = str(tmp_path / "out")
        with caplog.at_level(logging.INFO):
            command = ["run", str(config), "--data", str(benchmark), "--out", out]
            status = main([*command, "--processes", "1"])
        return status, caplog.text + capsys.readouterr().err

    return run


def test_one_command_makes_an_artifact_that_the_service_loads(
    config: Path, benchmark: Path, tmp_path: Path, train: Train
) -> None:
    """Recorded answers of two sources give a verified artifact and a report that agrees with it.

    The run includes all measurements of branches.
    """
    write_more(benchmark / "more")
    values = yaml.safe_load(config.read_text())
    values["also"] = [{"format": "labelled", "path": "more/rows.jsonl", "answers": "more"}]
    values["training"]["shares"] = dict.fromkeys(BRANCHES, 1)
    values["policies"]["quality"] = "accuracy=best+1"
    narrow = {"hidden_size": 16, "intermediate_size": 32, "epochs": 1}
    values["encoder"]["distilled"] = narrow
    config.write_text(yaml.safe_dump(values))
    status, printed = train()
    assert status == 0, printed
    router = Router.load(tmp_path / "out" / "artifact")
    manifest = router.artifact.manifest
    assert router.arms == ("large-FC", "small-FC")
    assert router.artifact.manifest.encoder.hidden_size == 16
    assert manifest.profile["large-FC"].cost_usd() == pytest.approx((90 * 10 + 20 * 20) / 1e6)
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    figures_agree(manifest, report)
    figures_follow_from_predictions(router.artifact)
    every_section_is_there(report["sections"])
    assert (report["folds"], report["teaching"]) == (3, 7)
    assert report["epochs"]
    assert len(report["parity"]) == 3
    scores = {each["name"]: each["scores"] for each in report["sections"]["categories"]}
    # The labels are the checker's: the city must be right, and no call is right if no tool fits.
    assert scores["simple"]["large-FC"]["accuracy"]["value"] == 1
    assert scores["simple"]["small-FC"]["accuracy"]["value"] == pytest.approx(26 / 40)
    assert scores["relevance"]["large-FC"]["accuracy"]["value"] == 1
    trained = trained_config(manifest)
    sources = (trained.source, *trained.also)
    assert len(sources) == 2
    assert manifest.provenance.data_sha256 == sources_sha256(sources, benchmark)
    # All 87 rows are recorded, and none of them was seen by the fold's router that predicted it.
    learned = LearnedQueries.read(router.artifact)
    assert learned is not None
    digests = digests_of(load_dataset(trained, benchmark).examples)
    assert learned.count(digests) == len(learned.digests) == 87
    assert learned.tools is not None
    assert all(map(learned.tools.has, load_dataset(trained, benchmark).examples))
    assert report["overlap"] == {"queries": 80, "learned": 0, "share": 0.0}
    assert "80 measured queries, 7 used only for training" in printed
    usages = json.loads((tmp_path / "out" / STAGES).read_text())
    planned = [usage["stage"] for usage in usages if not usage["step"]]
    assert planned == list(run_stages(load_config(config)))
    decision = router.decide_conversation(next(router.artifact.canaries()).conversation)
    assert decision.arm in router.arms


@pytest.mark.slow
def test_verifier_is_trained_and_reported(
    config: Path, benchmark: Path, tmp_path: Path, train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    """`verifier: true` adds a verifier and a section of the report; `add-verifier` does so later.

    The run has also added the familiarity, which `onboard` keeps.

    Both give the artifact the policy `verified`, which is its default here. To an arm that joined
    in between, `add-verifier` gives its estimated reliability, and no frontier is claimed, because
    none was measured with it.
    """
    values = yaml.safe_load(config.read_text()) | {"verifier": True, "streams_text_from": 0.9}
    values["packing"]["features"] = "all"
    values["training"] |= {"shares": {"lexical": 1}, "select_on": "last"}
    values["policies"] = {"default": "verified", "fast": "theta=0.5", "quality": "accuracy=best"}
    config.write_text(yaml.safe_dump(values))
    artifact, joined, later = (tmp_path / name for name in ("out/artifact", "joined", "later"))
    data = ["--data", str(benchmark)]
    with one_thread():
        status, printed = train()
        assert status == 0, printed
        new = ["--recording", str(benchmark / "bench"), "--arm", "other", "--price", "2,4"]
        command = ["onboard", str(artifact), *data, *new, "--answers", "40", "--out", str(joined)]
        assert main(command) == 0
        workspace = ["--workspace", str(tmp_path / "out" / "work")]
        assert main(["add-verifier", str(joined), *data, *workspace, "--out", str(later)]) == 0
    trained, with_other = (read_manifest(each / MANIFEST) for each in (artifact, later))
    verified = with_floors(trained.verified_frontier, trained.named_frontier)
    assert reach_goals(trained, verified) == trained
    assert trained.familiarity == with_other.familiarity is not None
    assert [*with_other.base_rates] == [*with_other.arms]
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    measured = report["verified"]["operating"]["entry"]
    printed = capsys.readouterr().out
    assert measured["name"] in printed
    assert "`verified` also asks other" in printed
    alone = json.loads((tmp_path / "later-verification.json").read_text())
    frontier = alone["frontier"]
    assert len(frontier) == len(report["verified"]["frontier"])
    for directory, points in ((artifact, frontier), (later, [])):
        router = Router.load(directory)
        assert isinstance(router.policy("verified"), Verified)
        assert router.policy() == router.policy("verified")
        assert str(router.artifact.manifest.choose_once) == "fast (theta=0.5)"
        assert len(router.artifact.manifest.verified_frontier) == len(points)
    manifest = router.artifact.manifest
    assert manifest.verifier is not None
    assert manifest.verifier.streams_text_from == 0.9
    expected = dict(zip(manifest.arms, manifest.verifier.reliabilities, strict=True))
    assert expected["other"] == manifest.onboarded["other"].accuracy.value
    assert expected["large-FC"] == 1


def figures_agree(manifest: Manifest, report: Json) -> None:
    """Check that the manifest's figures are those of the report, for all 80 own queries."""
    test = report["test"]
    by_name = {entry["name"]: entry for entry in test["entries"]}
    default, best = by_name[test["default_policy"]], by_name[test["best_single"]]
    assert {name: measure.model_dump() for name, measure in manifest.metrics.items()} == {
        "mean_auc": test["auc"],
        "default_accuracy": default["accuracy"],
        "default_cost_usd": default["cost_usd"],
        "best_single_accuracy": best["accuracy"],
        "best_single_cost_usd": best["cost_usd"],
        "oracle_accuracy": by_name["oracle"]["accuracy"],
        "oracle_cost_usd": by_name["oracle"]["cost_usd"],
    }
    assert {measure.n for measure in manifest.metrics.values()} == {80}
    assert len(manifest.frontier) == len(test["sweep"])


def figures_follow_from_predictions(artifact: Artifact) -> None:
    """Check that the held-out predictions give the manifest's figures, and those of one arm."""
    manifest = artifact.manifest
    found = describe_pool(artifact, manifest.arms, {}).manifest
    assert found.metrics == manifest.metrics
    assert found.policies == manifest.policies
    for got, wanted in zip(found.frontier, manifest.frontier, strict=True):
        assert (got.policy, got.accuracy, got.cost_usd) == (
            wanted.policy,
            wanted.accuracy,
            wanted.cost_usd,
        )
    goal = parse_goal(manifest.policy_goals["quality"], param="quality")
    assert goal is not None
    best = manifest.best_single_accuracy
    picked = find_point(goal, manifest.frontier, best, param="quality", is_nearest=True)
    assert picked.policy == manifest.policies["quality"]
    alone = describe_pool(artifact, manifest.arms[:1], {}).manifest
    assert {point.accuracy.n for point in alone.frontier} == {80}


def every_section_is_there(sections: Json) -> None:
    """Check for all sections of a run with all branches."""
    parts = {part["name"] for part in sections["parts"]}
    assert {f"without {name}" for name in BRANCHES} <= parts
    assert {f"{name} alone" for name in BRANCHES} <= parts
    tried = {trial["method"] for trial in sections["calibrating"]["trials"]}
    assert tried == {"identity", "temperature", "platt"}
    assert sections["promises"]
    assert all(sections.values())


@pytest.mark.recorded
def test_the_shipped_artifact_s_data_is_the_data_at_hand(recorded_data: Path) -> None:
    """The manifest's hashes match the recorded answers that its own configuration names.

    The digests of what it has learned from are those of all queries of these recordings.
    """
    artifact = Artifact.load(SHIPPED)
    config = trained_config(artifact.manifest)
    sources = (config.source, *config.also)
    assert sources_sha256(sources, recorded_data) == artifact.manifest.provenance.data_sha256
    known = LearnedQueries.read(artifact)
    assert known is not None
    opened = (open_source(source, recorded_data) for source in sources)
    examples = [example for source in opened for example in source.examples()]
    np.testing.assert_array_equal(known.digests, LearnedQueries.of(examples).digests)
