"""An artifact with a long window and a graph for GPUs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from router_service.apis.conversation import Conversation, parse_conversation
from router_service.predictor.model import Classifier
from router_service.predictor.packing import Packer
from router_service.router import Router
from switchcraft_training.cli import main
from switchcraft_training.datasets.rows import read_rows
from switchcraft_training.shipping import LARGE_DIFFERENCE
from tests.training.conftest import ARMS
from tests.training.models.stand_ins import save
from tests.training.runs import write_weather_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_run_ships_a_long_window_and_a_graph_for_gpus(config: Path, tmp_path: Path) -> None:
    """The encoder has ModernBERT's architecture and window, and training stops early.

    The artifact reads more than 2,000 tokens of a request, as in training. Each graph has canary
    probabilities of its own, and the report compares both. The graph for GPUs is run on the CPU, as
    at export.
    """
    write_weather_run(tmp_path / "data", ARMS[:2], long_phrases=300)
    values = yaml.safe_load(config.read_text()) | {
        "source": {"format": "labelled", "path": "rows.jsonl", "answers": "."},
        "auxiliary_arms": "none",
        "calibration": "none",
        "cuda_graph": True,
        "encoder": {"source": str(save("modernbert", tmp_path / "modernbert"))},
        "packing": {"budget_tokens": 8192, "tool_budget_tokens": 1600, "signature": "names"},
        "training": {"max_epochs": 1, "batch_size": 2, "evaluation_batch_size": 2},
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(values))
    out = tmp_path / "out"
    command = ["run", str(tmp_path / "run.yaml"), "--data", str(tmp_path / "data")]
    assert main([*command, "--out", str(out), "--processes", "1"]) == 0

    router = Router.load(out / "artifact")
    artifact, manifest = router.artifact, router.artifact.manifest
    assert manifest.calibration.method == "identity"
    examples = [judged.example for judged in read_rows(tmp_path / "data" / "rows.jsonl")]
    long, short = (parse_conversation(example.request) for example in examples[:2])
    decision = router.decide_conversation(long)
    assert 2000 < decision.packed_tokens < 8192
    # The encoder reads the long earlier turn: it changes the probabilities.
    assert decision.probabilities != router.decide_conversation(short).probabilities

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
    parity = json.loads((out / "report.json").read_text())["parity"]
    compared = {n: value for n, value in parity.items() if n.startswith("fp16 graph and int8")}
    assert [name.partition(": ")[2] for name in compared] == [
        "largest difference",
        "changed decisions",
    ]
    difference, changed = compared.values()
    assert 0 < difference < LARGE_DIFFERENCE
    assert 0 <= changed <= 1
