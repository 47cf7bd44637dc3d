"""The GPU benchmark, as far as it goes without a GPU."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def test_script_refuses_a_machine_without_gpu(tmp_path: Path) -> None:
    """It says that there is no GPU, and installs and writes nothing."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "nvidia-smi").write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed' >&2\nexit 9\n")
    (programs / "nvidia-smi").chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "ENVIRONMENT": str(tmp_path / "environment"),
        "OUT": str(tmp_path / "out"),
    }
    for name in ("DEVICE", "PYTHON"):
        environment.pop(name, None)
    done = subprocess.run(
        [ROOT / "benchmarks" / "gpu.sh"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert "no GPU: `nvidia-smi` does not work here" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]
