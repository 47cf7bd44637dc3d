"""`switchcraft route` and `switchcraft policies`: decisions and measured results offline."""

from __future__ import annotations

import hashlib
import io
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from router_service.artifact import (
    CANARIES,
    SHIPPED,
    Artifact,
    FrontierPoint,
    Measure,
    VersusBest,
)
from router_service.cli import main
from router_service.measurement.held_out import describe_pool, served_points
from router_service.offline import explain_goal, list_policies
from router_service.policies.costs import Price
from router_service.policies.verified import is_verified
from tests.fakes import manifest as fake_manifest

ROOT = Path(__file__).parents[2]
FIELDS = {
    *("arm", "probabilities", "cost_usd", "policy", "reason", "packed_tokens", "familiarity"),
}

Route = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def route(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Route:
    """Return a function that runs `switchcraft route` on lines of input and reads its output."""

    def run(lines: Sequence[bytes], *options: str) -> list[dict[str, Any]]:
        text = io.TextIOWrapper(io.BytesIO(b"".join(line + b"\n" for line in lines)))
        monkeypatch.setattr(sys, "stdin", text)
        assert main(["route", *options]) == 0
        return [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]

    return run


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


def test_advice_names_the_pool_of_each_size(capsys: pytest.CaptureFixture[str]) -> None:
    """For each number of models it prints what to add, with intervals; `--json` prints the same."""
    models = ["--models", "xai/grok-4-1-fast-non-reasoning", "claude-haiku-4-5", "gpt-5.2"]
    command = ["advise", *models, "--max-models", "2"]
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("The most accurate of 3 models alone is ")
    assert lines[2].startswith("Choosing once, at no more than 20% of its cost:")
    assert "elsewhere" in lines[3]
    assert re.search(r"^1 +grok-4.1-fast +alone +8\d\.\d \[", lines[4])
    assert any(line.startswith("Verified answers, at no more") for line in lines)
    assert main([*command, "--json"]) == 0
    advice = json.loads(capsys.readouterr().out)
    assert advice["arms"] == ["claude-haiku-4.5", "gpt-5.2", "grok-4.1-fast"]
    assert max(len(each["arms"]) for each in advice["efficient"]) == 2
    assert main(["advise", "--models", "gpt-2"]) == 1
    assert "no figures for this model" in capsys.readouterr().err


def test_advice_on_whole_tasks(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Names in any spelling find their figures, and a configuration's prices count."""
    names = ["anthropic/claude-opus-4.8", "openrouter/minimax/minimax-m3:free", "gpt-0"]
    command = ["advise", "--task", "coding"]
    assert main([*command, "--models", *names, "--within", "7"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"^> openrouter/minimax/minimax-m3:free +77\.2 \[", text, re.MULTILINE)
    assert "Without figures for coding tasks: gpt-0." in text
    config = tmp_path / "gateway.yaml"
    config.write_text(
        """
model_list:
  - model_name: opus
    litellm_params: {model: anthropic/claude-opus-4-8-20260528, api_key: k}
    model_info: {input_cost_per_token: 1e-5, output_cost_per_token: 5e-5}
  - model_name: gpt
    litellm_params: {model: openai/gpt-5.5, api_key: k}
"""
    )
    assert main([*command, "--config", str(config), "--json"]) == 0
    advice = json.loads(capsys.readouterr().out)
    assert (advice["task"], advice["chosen"], advice["unknown"]) == ("coding", "opus", [])
    opus, gpt = advice["models"]
    assert (opus["model"], gpt["model"]) == ("opus", "gpt")
    assert opus["low"] < opus["success"] < opus["high"]
    assert opus["usd_per_task"] == pytest.approx(2 * 0.778, abs=0.01)
    assert opus["tasks"] == 400
    assert opus["source"].startswith("SWE-bench Verified with OpenHands, 2026-05-28")


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
    artifact = replace(Artifact.load(SHIPPED), manifest=manifest)
    lines = list(explain_goal("accuracy=best", artifact))
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
        assert part in "\n".join(list_policies(artifact))


@pytest.mark.parametrize(
    ("goal", "problem"),
    [
        ("accuracy=0.999", "no rule was measured to reach this goal; the nearest, "),
        ("theta=0.5", "write within=0.5"),
    ],
    ids=["unreachable", "no goal"],
)
def test_goal_that_no_rule_reaches_is_an_error(
    goal: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command exits with status 1 and one line that names the nearest rule or the syntax."""
    assert main(["policies", "--goal", goal]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert problem in output.err
    assert output.err.count("\n") == 1


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
    verified = () if option == "--no-verified-goals" else served_points(artifact)
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


def test_policies_of_a_configuration_are_those_of_its_arms(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--config` prints the figures of the mapped arms at the configured prices."""
    arms = ("gpt-5.2", "gpt-4.1-mini")
    models = [
        {
            "model_name": arm,
            "litellm_params": {"model": f"openai/{arm}", "api_key": "none"},
            "model_info": {"input_cost_per_token": usd, "output_cost_per_token": usd},
        }
        for arm, usd in zip(arms, (1e-5, 1e-6), strict=True)
    ]
    config = tmp_path / "gateway.yaml"
    config.write_text(json.dumps({"model_list": models}))
    assert main(["policies", "--config", str(config), "--all"]) == 0
    shown = capsys.readouterr().out
    prices = {
        arm: Price(input_usd_per_mtok=usd, output_usd_per_mtok=usd)
        for arm, usd in zip(arms, (10, 1), strict=True)
    }
    expected = describe_pool(Artifact.load(SHIPPED), arms, prices)
    assert shown.splitlines() == list(list_policies(expected, every=True))


def test_goal_may_choose_verified_answers_offline(
    route: Route, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """`--verified-goals` routes by the verified policy that reaches the goal.

    A request that cannot be verified goes to the arm of the policy that chooses once, which
    `switchcraft policies` shows too.
    """
    body = json.loads((SHIPPED / CANARIES).read_text().splitlines()[0])["request"]
    line = json.dumps(body).encode()
    alone = json.dumps(body | {"n": 2}).encode()
    options = ("--policy", "accuracy=best", "--verified-goals")
    first, several = route([line, alone], *options)
    assert first["policy"].startswith("verified=")
    assert (first["action"], first["reason"]) == ("ask", "verified")
    assert (several["action"], several["unverified"]) == ("ask", "several_choices")
    (once,) = route([line], "--policy", "accuracy=best")
    assert {name: several[name] for name in FIELDS} == once
    answered = {"request": body | {"n": 2}, "answers": {once["arm"]: {"content": "Which one?"}}}
    (accepted,) = route([json.dumps(answered).encode()], *options)
    assert (accepted["action"], accepted["arm"]) == ("accept", once["arm"])
    assert main(["policies", "--goal", "accuracy=best", "--verified-goals"]) == 0
    shown = capfdbinary.readouterr().out.decode()
    assert first["policy"] in shown
    assert once["policy"] in shown
