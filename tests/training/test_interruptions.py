"""On a full disk, commands say what to do; afterwards, and after a kill, a run continues."""

from __future__ import annotations

import logging
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from onnx import helper, numpy_helper, save
from safetensors.torch import save_file
from tokenizers import Tokenizer

from router_service.artifact import MANIFEST, SHIPPED, TOKENIZER, Artifact
from switchcraft_training.cli import main
from switchcraft_training.errors import StorageError
from switchcraft_training.storage import explaining_failed_writes
from tests.serving import wait_for
from tests.training.disks import full_disk

pytestmark = pytest.mark.slow


def write_graph(path: Path) -> None:
    """Write an ONNX graph of 80 KB."""
    weights = numpy_helper.from_array(torch.zeros(20_000).numpy(), "weights")
    graph = helper.make_graph([], "graph", [], [], initializer=[weights])
    save(helper.make_model(graph), str(path))


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

        wait_for(has_finetuned, "the encoder is fine-tuned", 100)
        killed.kill()
    assert killed.returncode == -signal.SIGKILL
    assert not (out / "artifact" / MANIFEST).exists()

    with caplog.at_level(logging.INFO):
        assert main(run) == 0
    assert "fine-tuning was already finished" in caplog.text
    Artifact.load(out / "artifact")
