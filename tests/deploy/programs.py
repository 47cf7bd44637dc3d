"""What is shipped for Prometheus, and its tools that say what they think of it."""

from __future__ import annotations

import subprocess
from pathlib import Path

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yaml"
CONFIG = DEPLOY / "prometheus" / "prometheus.yaml"


def run(*command: str | Path) -> None:
    """Run a program; fail with what it printed where it is not content."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
