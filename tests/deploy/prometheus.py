"""The files shipped for Prometheus, and its own program that checks them."""

from __future__ import annotations

import subprocess
from pathlib import Path

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yaml"
CONFIG = DEPLOY / "prometheus" / "prometheus.yaml"


def run(*command: str | Path, text: str = "") -> None:
    """Run a program on a text; fail with its output if it reports an error."""
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
