"""`switchcraft policies`: measured results of each rule, to help choose one."""

from __future__ import annotations

import re
import subprocess
import sys

from router_service.core.artifact import SHIPPED, Artifact, FrontierPoint, Measure, VersusBest
from router_service.offline import explain_goal, list_policies
from tests.fakes import manifest as fake_manifest


def policies(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    return subprocess.run(
        [sys.executable, "-m", "router_service.cli", "policies", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def rules(output: str) -> list[str]:
    """Return the rules at the beginning of lines, without marks."""
    return [match[1] for match in re.finditer(r"^((?:theta|drift)=[\d.]+)", output, re.MULTILINE)]


def test_policies_are_listed_by_cost() -> None:
    """`--all` lists every measured rule by cost, followed by the best single model.

    Without it, rules that a cheaper one matches are left out unless they have a name.
    """
    manifest = Artifact.load(SHIPPED).manifest
    everything, useful = policies("--all").stdout, policies().stdout
    by_cost = sorted(manifest.frontier, key=lambda point: point.cost_usd.value)
    assert rules(everything) == [point.policy for point in by_cost]
    left = [point for point in by_cost if point.policy in rules(useful)]
    unnamed = [p.accuracy.value for p in left if p.policy not in manifest.policies.values()]
    assert unnamed == sorted(set(unnamed))
    assert set(manifest.policies.values()) <= set(rules(useful))
    assert len(rules(useful)) < len(by_cost)
    (default,) = [line for line in useful.splitlines() if " default" in line]
    assert default.startswith(manifest.policies["default"])
    assert "best single model" in useful.splitlines()[-4]


def test_goal_is_explained_with_its_intervals() -> None:
    """The rule is shown with accuracy, difference, cost and cost share, and their intervals."""
    point = FrontierPoint(
        policy="theta=0.2",
        accuracy=Measure(value=0.872, stderr=0.01, n=1384),
        cost_usd=Measure(value=0.0004, stderr=0.00001, n=1384),
        accuracy_interval=(0.853, 0.89),
        cost_usd_interval=(0.00038, 0.00042),
        versus_best=VersusBest(
            difference=0.013,
            difference_interval=(-0.002, 0.028),
            cost_share=0.279,
            cost_share_interval=(0.25, 0.31),
        ),
    )
    metrics = {"best_single_accuracy": Measure(value=0.859, stderr=0.01, n=1384)}
    manifest = fake_manifest().model_copy(update={"frontier": (point,), "metrics": metrics})
    lines = list(explain_goal("accuracy=best", manifest))
    assert lines[0].split() == ["goal", "accuracy=best"]
    for part in (
        "theta=0.2 economy",
        "87.2 [85.3, 89.0]",
        "+1.3 [-0.2, +2.8]",
        "0.400 [0.380, 0.420]",
        "27.9 [25.0, 31.0]",
        "1384 queries",
    ):
        assert part in "\n".join(lines)
        assert part in "\n".join(list_policies(manifest))


def test_unreachable_goal_is_an_error() -> None:
    """The command exits with status 1 and one line with the nearest rule."""
    run = policies("--goal", "accuracy=0.999")
    assert (run.returncode, run.stdout) == (1, "")
    assert "no rule was measured to reach this goal; the nearest, " in run.stderr
    assert "write accuracy=best" in policies("--goal", "theta=0.5").stderr
