"""The paper's protocol: one router, measured on a tenth of the rows that it has not seen."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from router_service.apis.conversation import Conversation, parse_conversation
from router_service.artifact import Artifact
from router_service.measurement.held_out import Figures
from router_service.measurement.rules import frontier_rules
from router_service.predictor.model import Classifier
from router_service.predictor.packing import Packer
from router_service.router import Router
from switchcraft_training.cli import main
from switchcraft_training.config import RunConfig
from switchcraft_training.datasets.rows import read_rows
from switchcraft_training.experiment import NAIVE_TRUNCATION, run_experiment
from switchcraft_training.models.checkpoints import FINISHED
from switchcraft_training.shipping import LARGE_DIFFERENCE
from switchcraft_training.training_data import TrainingData, read_training_data
from tests.training.conftest import ARMS
from tests.training.models.stand_ins import save
from tests.training.papers import DATASETS, write_labelled

pytestmark = pytest.mark.slow

RUN_S = 900
"""15 s of computing, but minutes on a machine that is busy with other tests."""

Settings = dict[str, object]
Load = Callable[[Settings], TrainingData]


@pytest.fixture
def values(config: Path, tmp_path: Path) -> Settings:
    """Return the settings of a run on five datasets in the paper's protocol."""
    write_labelled(tmp_path / "data", ARMS[:2])
    settings: Settings = yaml.safe_load(config.read_text())
    return settings | {
        "source": {"format": "labelled", "path": "rows.jsonl", "answers": "."},
        "auxiliary_arms": "none",
        "training": {"max_epochs": 1},
        "calibration": "none",
        "evaluation": {"protocol": "split", "truncated": False, "baselines": False},
    }


@pytest.fixture
def load(values: Settings, tmp_path: Path) -> Load:
    """Return a function that loads and packs the data, with other settings of the evaluation."""

    def load_with(evaluation: Settings) -> TrainingData:
        run = RunConfig.model_validate(values | {"evaluation": {"protocol": "split"} | evaluation})
        return read_training_data(run, tmp_path / "data", tmp_path)

    return load_with


def test_held_out_dataset_is_tested_whole_and_never_trained_on(load: Load) -> None:
    """Training and validation lose the held-out dataset and all near-duplicates of its rows."""
    data = load({"held_out": ["glaive"]})
    datasets = np.array([example.dataset for example in data.table.examples])
    near = np.flatnonzero(datasets == "hermes")[0]
    groups = np.arange(len(datasets))
    groups[near] = np.flatnonzero(datasets == "glaive")[0]  # a copy in another dataset
    split = replace(data, table=replace(data.table, groups=groups)).split()
    assert sorted(split.test) == np.flatnonzero(datasets == "glaive").tolist()
    others = {*split.train, *split.validation}
    assert set(datasets[list(others)]) == set(DATASETS) - {"glaive"}
    assert near not in others


def test_both_parts_have_every_entrant(load: Load) -> None:
    """Baselines and the router on truncated input are measured on test and validation rows.

    The rule of a policy that follows a goal is chosen on the validation rows.
    """
    data = load({"truncated": True, "baselines": True})
    policies = {"default": "theta=0.5", "economy": "accuracy=best-10"}
    data = replace(data, config=data.config.model_copy(update={"policies": policies}))
    result = run_experiment(data)
    assert result is not None
    test, validation = result.experiments["test"], result.experiments["validation"]
    split = data.split()
    assert result.division.shipped == split
    assert result.predictions.trained is not None
    for experiment, rows in ((test, split.test), (validation, split.validation)):
        assert [e.id for e in experiment.table.examples] == [
            data.table.examples[r].id for r in rows
        ]
        assert experiment.probabilities.shape == (len(rows), 2)
        entrants = {entrant.name: entrant for entrant in experiment.entrants}
        assert {"length", "kNN", "dataset oracle"} <= set(entrants)
        assert [variant.name for variant in experiment.variants] == [NAIVE_TRUNCATION]
        for entrant in (*entrants.values(), *experiment.variants):
            assert len(entrant.choices) == len(rows)
    chosen = Figures.measure(
        validation.table, validation.probabilities, validation.expected_costs_usd, policies
    ).policies
    assert test.policies == validation.policies == chosen
    costs_usd = np.asarray(test.expected_costs_usd)
    assert chosen["economy"] in frontier_rules(costs_usd)
    assert (costs_usd == data.expected_costs_usd(split.train)).all()


@pytest.mark.timeout(RUN_S)
def test_run_trains_one_router_and_ships_it(values: Settings, tmp_path: Path) -> None:
    """One fine-tuning gives an artifact, and reports on the test and the validation part.

    The encoder has ModernBERT's architecture and window: the artifact reads more than 2,000 tokens
    of a request, as in training. The artifact has a graph for GPUs, too.
    """
    write_labelled(tmp_path / "data", ARMS[:2], long_phrases=300)
    values |= {
        "cuda_graph": True,
        "encoder": {"source": str(save("modernbert", tmp_path / "modernbert"))},
        "packing": {"budget_tokens": 8192, "tool_budget_tokens": 1600, "signature": "names"},
        "training": {"max_epochs": 1, "batch_size": 2, "evaluation_batch_size": 2},
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(values))
    out = tmp_path / "out"
    command = ["run", str(tmp_path / "run.yaml"), "--data", str(tmp_path / "data")]
    assert main([*command, "--out", str(out)]) == 0
    trained = list((out / "work" / "checkpoints").glob(f"*/{FINISHED}"))
    assert len(trained) == 1
    reports = [json.loads((out / f"{name}.json").read_text()) for name in ("report", "validation")]
    for report, part in zip(reports, ("test", "validation"), strict=True):
        assert report["split"] == {"train": 40, "validation": 5, "test": 5}
        assert (report["part"], report["test"]["auc"]["n"]) == (part, 5)
        assert report["overlap"] == {"queries": 5, "learned": 0, "share": 0.0}
    assert "the test part of a split into 40 training" in (out / "report.html").read_text()

    router = Router.load(out / "artifact")
    manifest = router.artifact.manifest
    entries = {entry["name"]: entry for entry in reports[1]["test"]["entries"]}
    default = entries[reports[1]["test"]["default_policy"]]
    assert manifest.metrics["validation_accuracy"].model_dump() == default["accuracy"]
    assert manifest.calibration.method == "identity"
    examples = [judged.example for judged in read_rows(tmp_path / "data" / "rows.jsonl")]
    long, short = (parse_conversation(example.request) for example in examples[:2])
    decision = router.decide_conversation(long)
    assert 2000 < decision.packed_tokens < 8192
    # The encoder reads the long earlier turn: it changes the probabilities.
    assert decision.probabilities != router.decide_conversation(short).probabilities
    graphs_are_compared(router.artifact, reports[0]["parity"])


def graphs_are_compared(artifact: Artifact, parity: dict[str, float]) -> None:
    """Check that each graph has canary probabilities of its own, and that the report compares both.

    The graph for GPUs is run on the CPU, as at export.
    """
    manifest = artifact.manifest
    assert manifest.models == {"cpu": "model.int8.onnx", "cuda": "model.fp16.onnx"}
    packer = Packer(manifest.packing, artifact.tokenizer)
    recorded = {}
    for device in manifest.models:
        graph = Classifier(artifact.model_path(device), arms=len(manifest.arms))

        def predict(
            conversations: Sequence[Conversation], graph: Classifier = graph
        ) -> list[list[float]]:
            rows: list[list[float]] = graph.predict(list(map(packer.pack, conversations))).tolist()
            return rows

        artifact.check_canaries(predict, device)
        canaries = list(artifact.canaries(device))
        recorded[device] = [list(canary.probabilities.values()) for canary in canaries]
        assert predict([canary.conversation for canary in canaries]) == recorded[device]
    assert recorded["cpu"] != recorded["cuda"]
    compared = {n: value for n, value in parity.items() if n.startswith("fp16 graph and int8")}
    assert [name.partition(": ")[2] for name in compared] == [
        "largest difference",
        "changed decisions",
    ]
    difference, changed = compared.values()
    assert 0 < difference < LARGE_DIFFERENCE
    assert 0 <= changed <= 1
