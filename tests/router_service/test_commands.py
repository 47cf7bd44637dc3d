"""`switchcraft route` and `switchcraft policies`: decisions and measured results offline."""

from __future__ import annotations

import hashlib
import re

import pytest

from router_service.artifact import (
    SHIPPED,
    Artifact,
)
from router_service.cli import main
from router_service.measurement.held_out import goal_points
from router_service.policies.verified import is_verified


def rules(output: str) -> list[str]:
    """Return the rules at the beginning of lines, without marks."""
    return [
        match[1]
        for match in re.finditer(r"^((?:theta|drift|utility)=[\d.]+)", output, re.MULTILINE)
    ]


def test_policies_are_listed_by_cost(capsys: pytest.CaptureFixture[str]) -> None:
    """`--all` lists every measured rule by cost, followed by the best single model.

    Without it, rules that a cheaper one matches are left out unless they have a name.
    """
    manifest = Artifact.load(SHIPPED).manifest
    assert main(["policies", "--all"]) == 0
    everything = capsys.readouterr().out
    assert main(["policies"]) == 0
    useful = capsys.readouterr().out
    by_cost = sorted(manifest.frontier, key=lambda point: point.cost_usd.value)
    assert rules(everything) == [point.policy for point in by_cost]
    left = [point for point in by_cost if point.policy in rules(useful)]
    unnamed = [p.accuracy.value for p in left if p.policy not in manifest.policies.values()]
    assert unnamed == sorted(set(unnamed))
    assert manifest.policies["fast"] in rules(useful)
    assert len(rules(useful)) < len(by_cost)
    (default,) = [line for line in useful.splitlines() if " default" in line]
    assert default.startswith(manifest.named_rules["default"])
    verified = [line for line in useful.splitlines() if line.startswith("verified=")]
    footer = useful.splitlines()[1 + len(rules(useful)) + len(verified) :]
    assert footer[0].startswith("best single model")
    (operating,) = [line for line in verified if " verified" in line]
    assert operating.startswith(manifest.named_rules["verified"])


@pytest.mark.parametrize("option", ["--verified-goals", "--no-verified-goals", None])
def test_reachable_goal_prints_its_rule(
    capsys: pytest.CaptureFixture[str], option: str | None
) -> None:
    """`--goal accuracy=best` prints the cheapest rule that is as accurate as the best model.

    As in a gateway, it may be a verified one, unless an option forbids it.
    """
    artifact = Artifact.load(SHIPPED)
    manifest = artifact.manifest
    best = manifest.best_single_accuracy
    assert best is not None
    verified = () if option == "--no-verified-goals" else goal_points(artifact)
    measured = (*manifest.frontier, *verified)
    reaching = [point for point in measured if point.accuracy.value >= best.value]
    cheapest = min(reaching, key=lambda point: point.cost_usd.value)
    assert main(["policies", "--goal", "accuracy=best", *filter(None, [option])]) == 0
    goal, rule = capsys.readouterr().out.splitlines()[:2]
    assert goal.split() == ["goal", "accuracy=best"]
    assert rule.split()[:2] == ["policy", cheapest.policy]
    assert is_verified(cheapest.policy) is (option != "--no-verified-goals")


def test_key_command_prints_a_key_and_its_hash(capsys: pytest.CaptureFixture[str]) -> None:
    """`switchcraft key` prints only a key and its line for the configuration on standard output."""
    assert main(["key"]) == 0
    key, line = capsys.readouterr().out.splitlines()
    assert line == "sha256:" + hashlib.sha256(key.encode()).hexdigest()
