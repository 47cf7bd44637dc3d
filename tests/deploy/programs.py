"""The files shipped for Prometheus, and its tools that check them."""

from __future__ import annotations

import subprocess
from pathlib import Path

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yaml"
CONFIG = DEPLOY / "prometheus" / "prometheus.yaml"


def run(*command: str | Path) -> None:
    """Run a program; fail with its output if it reports an error."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
