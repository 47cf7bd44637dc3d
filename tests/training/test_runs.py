"""Runs that train a whole artifact: with a graph for GPUs, after interruptions, and from a log."""

from __future__ import annotations

import json
import logging
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
import yaml
from onnx import helper, numpy_helper
from onnx import save as save_graph
from safetensors.torch import save_file
from tokenizers import Tokenizer

from router_service.apis.conversation import Conversation, parse_conversation
from router_service.artifact import MANIFEST, SHIPPED, TOKENIZER, Artifact
from router_service.predictor.model import Classifier
from router_service.predictor.packing import Packer
from router_service.router import Router
from router_service.store.pointers import Pointer
from switchcraft_training.cli import main
from switchcraft_training.datasets.rows import read_rows
from switchcraft_training.errors import StorageError
from switchcraft_training.shipping import LARGE_DIFFERENCE
from switchcraft_training.storage import explaining_failed_writes
from tests.serving import wait_for
from tests.training.conftest import ARMS, CITIES
from tests.training.decisions.cases import (
    Line,
    call,
    content,
    decision,
    expects,
    right,
    write_log,
    wrong,
)
from tests.training.disks import full_disk
from tests.training.models.stand_ins import save
from tests.training.runs import write_weather_run


@pytest.mark.slow
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


def write_graph(path: Path) -> None:
    """Write an ONNX graph of 80 KB."""
    weights = numpy_helper.from_array(torch.zeros(20_000).numpy(), "weights")
    graph = helper.make_graph([], "graph", [], [], initializer=[weights])
    save_graph(helper.make_model(graph), str(path))


@pytest.mark.slow
@pytest.mark.parametrize(
    "write",
    [
        lambda path: path.write_bytes(bytes(80_000)),
        lambda path: save_file({"weights": torch.zeros(20_000)}, path),
        lambda path: torch.save(torch.zeros(20_000), path),
        lambda path: Tokenizer.from_file(str(SHIPPED / TOKENIZER)).save(str(path)),
        write_graph,
    ],
    ids=["bytes", "safetensors", "torch", "tokenizer", "onnx"],
)
def test_every_library_s_failed_write_is_one_error(
    write: Callable[[Path], None], tmp_path: Path
) -> None:
    """The error names the folder and its free space, whichever library writes."""
    out = tmp_path / "not yet there"
    with full_disk(20_000), pytest.raises(StorageError) as caught, explaining_failed_writes([out]):
        write(tmp_path / "file")
    assert caught.value.free_bytes[out] > 0
    assert f"{out} (" in str(caught.value)
    assert "run the same command again" in str(caught.value)


@pytest.mark.slow
def test_run_continues_after_a_full_disk_and_after_a_kill(
    config: Path,
    benchmark: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Finished stages are reused, and nothing is taken for an artifact before it is complete."""
    out = tmp_path / "out"
    run = ["run", str(config), "--data", str(benchmark), "--out", str(out)]
    with full_disk(100_000):
        assert main(run) == 1
    error = capsys.readouterr().err
    assert re.search(rf"a file cannot be .*{re.escape(str(out))} \([\d,]+ MB\)", error)
    assert "run the same command again" in error

    command = [sys.executable, "-m", "switchcraft_training.cli", *run]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as killed:

        def has_finetuned() -> bool:
            assert killed.poll() is None, "the run ended before it could be killed"
            return bool(list(out.glob("work/checkpoints/*/finished.safetensors")))

        wait_for(has_finetuned, "the encoder is fine-tuned")
        killed.kill()
    assert killed.returncode == -signal.SIGKILL
    assert not (out / "artifact" / MANIFEST).exists()

    with caplog.at_level(logging.INFO):
        assert main(run) == 0
    assert "fine-tuning was already finished" in caplog.text
    Artifact.load(out / "artifact")


JOB = Path(__file__).parents[2] / "examples" / "retraining_job.py"
PRICES_USD = {"large": 10, "small": 1}


def lines_of(number: int, arm: str) -> tuple[Line, Line]:
    """Return a decision and its feedback: the small model fails every third question."""
    name, city = f"{arm}-{number}", CITIES[number]
    asked = content(f"Weather in {city}?", (call(city),))
    logged = decision(name, arm, content=asked, propensity=0.5, reason="explored")
    if number == 1:  # the checker judges this one
        return logged, expects(name, call(city))
    is_right = arm == "large" or number % 3 > 0
    return logged, right(name) if is_right else wrong(name)


@pytest.mark.slow
def test_log_trains_the_next_artifact(
    config: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The job of the examples trains from the log, and publishes a canary, which replay judges."""
    pairs = [lines_of(number, arm) for number in range(len(CITIES)) for arm in PRICES_USD]
    log = write_log(tmp_path / "log", [line for pair in pairs for line in pair])
    values = yaml.safe_load(config.read_text())
    values["source"] = {"format": "decisions", "path": str(log)}
    values["pool"] = [
        {"arm": arm, "price": {"input_usd_per_mtok": usd, "output_usd_per_mtok": usd}}
        for arm, usd in PRICES_USD.items()
    ]
    values["auxiliary_arms"] = "none"
    values["training"] = {"shares": {"forest": 1}}  # the fastest branch
    # With theta=0.5 the small model, which is right in two of three cases, would always answer.
    values["policies"]["default"] = "theta=0.9"
    config.write_text(yaml.safe_dump(values))
    published = tmp_path / "published"
    assert main(["publish", str(SHIPPED), "--to", str(published)]) == 0
    options = ["--work", str(tmp_path / "out"), "--publish-to", str(published)]
    monkeypatch.setattr("sys.argv", ["retraining_job.py", str(config), str(tmp_path), *options])
    with caplog.at_level(logging.INFO), pytest.raises(SystemExit) as ended:
        runpy.run_path(str(JOB), run_name="__main__")
    assert ended.value.code == 0
    publication = Pointer(published).read()
    assert publication is not None
    assert publication.canary is not None
    assert publication.canary.release.name == "made-up"
    asked = len(pairs)
    assert f"{asked} of {asked} decisions give labels for {len(CITIES)} queries" in caplog.text
    artifact = tmp_path / "out" / "artifact"
    assert Router.load(artifact).arms == tuple(PRICES_USD)
    options = ["--artifact", str(artifact), "--policy", "theta=0", "--out", str(tmp_path)]
    assert main(["replay", str(log), *options]) == 0
    found = json.loads((tmp_path / "replay.json").read_bytes())
    assert found["overlap"] == {"queries": asked, "learned": asked, "share": 1.0}
    cheapest = found["accuracy"]["policies"]["theta=0"]
    assert cheapest["dr"]["value"] < found["accuracy"]["chosen"]["value"] + 0.05
