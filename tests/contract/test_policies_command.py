"""`switchcraft policies`: what each rule was measured to do, for who has to choose one."""

from __future__ import annotations

import subprocess
import sys

from router_service.core.artifact import SHIPPED, Artifact


def test_the_measured_frontier_is_listed_by_cost() -> None:
    """Every measured rule has a line, with its names; costs rise from line to line."""
    run = subprocess.run(
        [sys.executable, "-m", "router_service.cli", "policies"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    head, *lines, best = run.stdout.splitlines()
    manifest = Artifact.load(SHIPPED).manifest
    assert head.split() == ["policy", "accuracy", "USD", "per", "1,000"]
    assert {line.split()[0] for line in lines} == {point.policy for point in manifest.frontier}
    costs = [float(line.split()[-3]) for line in lines]
    assert costs == sorted(costs)
    (default,) = [line for line in lines if " default" in line]
    assert default.startswith(manifest.policies["default"])
    assert best.startswith("best single model")
