"""`switchcraft-train replay`, and its estimators, compared with hand calculations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from router_service.apis.conversation import Json
from router_service.artifact import SHIPPED, Artifact
from router_service.core.decision_record import CandidateRecord
from router_service.measurement.rules import Choices
from router_service.measurement.statistics import Estimate
from switchcraft_training.cli import main
from switchcraft_training.decisions.log import read_log
from switchcraft_training.replay.estimators import (
    LoggedChoices,
    PolicyEstimate,
    Reward,
    estimate_logged,
    estimate_policies,
)
from switchcraft_training.replay.replay import replay_log
from tests.training.decisions.cases import (
    Line,
    content,
    decision,
    negative_evidence,
    right,
    write_log,
    wrong,
)

ARMS = Artifact.load(SHIPPED).manifest.arms


def log_lines(
    n: int, share: float, *, arms: tuple[str, str] = ("large", "small"), text: str = ""
) -> Iterator[Line]:
    """Yield decisions of `theta=0.5` with exploration and feedback, two turns per conversation."""
    rng = np.random.default_rng(0)
    for i in range(n):
        probabilities = {
            arms[0]: float(rng.uniform(0.6, 0.98)),
            arms[1]: float(rng.uniform(0.3, 0.9)),
        }
        policy, other = arms[::-1] if probabilities[arms[1]] >= 0.5 else arms
        explores = rng.random() < share / 2
        arm = other if explores else policy
        propensity = share / 2 if explores else 1 - share / 2
        yield decision(
            f"d{i}",
            arm,
            conversation=f"c{i // 2}",
            probabilities=probabilities,
            expected_cost_usd={arms[0]: 0.01, arms[1]: 0.001},
            propensity=propensity,
            reason="explored" if explores else "threshold",
            cost_usd=0.01 if arm == arms[0] else 0.001,
            content=content(f"{text} {i}") if text else None,
        )
        yield (right(f"d{i}") if rng.random() < probabilities[arm] else wrong(f"d{i}"))


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Run the command; return its status, its output and its error output."""
    status = main(["replay", *map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_policy_is_estimated_from_the_log_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table and the file agree, and the intervals contain each policy's true result."""
    log = write_log(tmp_path / "log", log_lines(600, 0.4))
    rules = ("--policy", "theta=0.5", "--policy", "drift=0")
    status, printed, _ = run(capsys, log, *rules, "--out", tmp_path / "out")
    assert status == 0
    found: Json = json.loads((tmp_path / "out" / "replay.json").read_bytes())
    assert (found["replayed"], found["conversations"], found["with_feedback"]) == (600, 300, 600)
    assert (found["explored"], found["left"], found["artifact"]) == (600, {}, None)
    estimate = found["accuracy"]["policies"]["drift=0"]
    truth = np.mean([max(d.probabilities.values()) for d in read_log(log).decisions])
    for name in ("ips", "snips", "dr"):
        low, high = estimate[name]["interval"]
        assert low <= truth <= high
        assert f"{estimate[name]['value'] * 100:.1f} [{low * 100:.1f}, {high * 100:.1f}]" in printed
    chosen = found["accuracy"]["chosen"]["value"]
    regret = found["accuracy"]["policies"]["drift=0"]["regret"]["value"]
    assert regret == pytest.approx(chosen - estimate["dr"]["value"])
    costs = found["cost_usd"]["policies"]
    assert costs["theta=0.5"]["dr"]["value"] < costs["drift=0"]["dr"]["value"]
    assert "*" not in printed


VERIFIED_CANDIDATE = CandidateRecord(
    arm="large", model="large", step=1, is_accepted=True, seconds=1.0
)


def test_fallbacks_and_broken_answers_are_left_out(tmp_path: Path) -> None:
    """Only complete answers whose arm was drawn are replayed; unknown values stay unknown."""
    log = write_log(
        tmp_path,
        [
            *(
                decision("a"),
                right("a"),
                decision("b", cost_usd=None),
                wrong("b"),
            ),
            *(decision("c"), decision("d", is_fallback=True), right("d")),
            *(decision("e", ending="broken"), wrong("e")),
            decision("f", expected_cost_usd={"large": 1.0}),
            *(decision("g", candidates=[VERIFIED_CANDIDATE], propensity=None), right("g")),
            *(decision("h", propensity=None), right("h")),
        ],
    )
    found = replay_log(read_log(log), ["theta=0.5"])
    assert (found.decisions, found.replayed, found.with_feedback) == (8, 3, 2)
    assert sorted(found.left.values()) == [1, 1, 1, 2]
    assert found.accuracy.policies["theta=0.5"].n == 2
    assert found.cost_usd.policies["theta=0.5"].n == 2


def test_output_fits_a_terminal_and_shares_stay_shares(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tables and notes have at most 80 columns, and no interval of a share leaves 0 to 100%."""
    pair = (ARMS[0], ARMS[5])
    lines = [*log_lines(30, 0.4, arms=pair, text="Book a table"), negative_evidence("d1")]
    log = write_log(tmp_path / "log", lines)
    status, printed, _ = run(capsys, log, "--artifact", SHIPPED, "--out", tmp_path)
    assert status == 0
    assert max(map(len, printed.splitlines())) <= 80
    assert "+26.6]  -2.700 [-4.500, -1.200]" in printed, "numbers are not wrapped"
    found = json.loads((tmp_path / "replay.json").read_bytes())
    for reward in ("accuracy", "contradicted"):
        for each in found[reward]["policies"].values():
            ends = [each[name]["interval"] for name in ("ips", "snips", "dr")]
            assert 0 <= np.min(ends) <= np.max(ends) <= 1


def test_another_artifact_decides_by_its_own_predictions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The artifact decides by its own predictions, among the arms that could serve the request."""
    pair = (ARMS[0], ARMS[2])
    log = write_log(tmp_path / "log", log_lines(40, 0.4, arms=pair, text="Book a table in Oslo"))
    write_log(
        log,
        [
            decision(
                "without", pair[0], probabilities={pair[0]: 0.9}, expected_cost_usd={pair[0]: 0.1}
            )
        ],
        "decisions-2.jsonl",
    )
    status, printed, _ = run(
        capsys,
        log,
        "--artifact",
        SHIPPED,
        "--policy",
        "theta=0",
        "--policy",
        "fast",
        "--out",
        tmp_path,
    )
    assert status == 0
    assert f"probabilities: {SHIPPED.name}" in printed
    assert "left out: 1 without content" in printed
    found = json.loads((tmp_path / "replay.json").read_bytes())
    assert (found["replayed"], list(found["accuracy"]["policies"])) == (40, ["theta=0", "fast"])
    cheapest = found["accuracy"]["policies"]["theta=0"]
    share = np.mean([d.arm == pair[1] for d in read_log(log).decisions[:-1]])
    assert cheapest["same"] == pytest.approx(share)


@pytest.mark.parametrize("options", [(), ("--artifact", str(SHIPPED))])
def test_verified_policies_are_compared_by_another_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    """The error names `switchcraft learn`, which asks for the answers that a log lacks."""
    log = write_log(tmp_path / "log", log_lines(10, 0.4))
    status, _, error = run(capsys, log, *options, "--policy", "verified=0.01")
    assert status == 1
    assert "switchcraft learn" in error


def test_weak_evidence_is_estimated_apart_from_accuracy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Contradicted answers have a column of their own, and verdicts say how reliable they are."""
    lines: list[Line] = []
    for n in range(40):
        lines.append(decision(f"d{n}", conversation=f"c{n // 2}"))
        is_wrong = n % 4 == 0
        lines.append(wrong(f"d{n}") if is_wrong else right(f"d{n}"))
        if is_wrong or n == 1:
            lines.append(negative_evidence(f"d{n}"))
    log = write_log(tmp_path / "log", lines)
    status, printed, _ = run(capsys, log, "--out", tmp_path)
    assert status == 0
    found = json.loads((tmp_path / "replay.json").read_bytes())
    assert found["contradicted"]["chosen"]["value"] == pytest.approx(11 / 40)
    assert found["accuracy"]["chosen"]["value"] == pytest.approx(30 / 40)
    assert found["evidence"] == {
        "contradicted": 11,
        "wrong_contradicted": 10,
        "others": 29,
        "wrong_others": 0,
    }
    assert "91% of 11 contradicted answers with a verdict are wrong" in " ".join(printed.split())


CHOICES = LoggedChoices(
    chosen=np.array([0, 1, 0, 1]),
    propensity=np.array([0.8, 0.2, 0.8, 0.2]),
    explored=np.array([False, True, False, True]),
    conversations=np.arange(4),
)
EXPECTED = np.array([[0.9, 0.5], [0.8, 0.4], [0.7, 0.6], [0.6, 0.2]])
SEEN = np.array([1.0, 0.0, 0.0, 1.0])


def estimate_target(rounds: LoggedChoices, reward: Reward, target: list[int]) -> PolicyEstimate:
    """Replay one target."""
    return estimate_policies(rounds, reward, {"target": np.array(target)})["target"]


def take_rows(rounds: LoggedChoices, rows: Choices) -> LoggedChoices:
    """Return the rounds at these indices, in the given order."""
    return LoggedChoices(
        rounds.chosen[rows],
        rounds.propensity[rows],
        rounds.explored[rows],
        rounds.conversations[rows],
    )


def value(found: Estimate | None) -> float:
    """Return the value of an estimate."""
    assert found is not None
    return found.value


def test_estimates_equal_hand_calculations() -> None:
    """The estimates for four rounds, two of which agree with the target, follow the definitions."""
    found = estimate_target(CHOICES, Reward(SEEN, EXPECTED, "low"), [0, 0, 1, 1])
    assert value(found.ips) == pytest.approx((1 / 0.8 + 1 / 0.2) / 4)
    assert value(found.snips) == pytest.approx(1)
    model = (0.9 + 0.8 + 0.6 + 0.2) / 4
    off = ((1 - 0.9) / 0.8 + (1 - 0.2) / 0.2) / 4
    assert found.model == pytest.approx(model)
    assert value(found.dr) == pytest.approx(model + off)
    assert value(found.regret) == pytest.approx(0.5 - model - off)
    assert value(found.mean_weight) == pytest.approx((1 / 0.8 + 1 / 0.2) / 4)
    assert (found.n, found.same, found.coverage) == (4, 0.5, 1.0)
    assert found.effective_n == pytest.approx((1.25 + 5) ** 2 / (1.25**2 + 25))


def test_without_exploration_only_dr_has_a_value() -> None:
    """If the log could not have chosen the arm, only DR has a value, and coverage is below 1."""
    certain = LoggedChoices(CHOICES.chosen, np.ones(4), CHOICES.chosen < 0, CHOICES.conversations)
    found = estimate_target(certain, Reward(SEEN, EXPECTED, "low"), [0, 0, 1, 1])
    assert (found.coverage, found.ips, found.snips, found.mean_weight) == (0.5, None, None, None)
    assert value(found.dr) == pytest.approx((1 + 0.8 + 0.6 + 1) / 4)
    same = estimate_target(certain, Reward(SEEN, EXPECTED, "low"), CHOICES.chosen.tolist())
    assert same.coverage == 1
    assert value(same.ips) == value(same.dr) == SEEN.mean()
    assert value(same.regret) == 0


def test_repeated_turns_do_not_narrow_intervals() -> None:
    """Repeating each conversation's turns five times does not change the intervals at all."""
    rng, turns = np.random.default_rng(1), 180
    conversations = np.arange(turns) // 3
    chosen, explored = rng.integers(0, 2, turns), rng.random(turns) < 0.5
    rounds = LoggedChoices(chosen, np.full(turns, 0.5), explored, conversations)
    seen = rng.integers(0, 2, turns).astype(np.float64)
    reward = Reward(seen, rng.random((turns, 2)), "low")
    target = rng.integers(0, 2, turns)
    often = np.repeat(np.arange(turns), 5)
    repeated = take_rows(rounds, often)
    once = estimate_target(rounds, reward, target.tolist())
    many = estimate_target(
        repeated, Reward(reward.seen[often], reward.expected[often], "low"), target[often].tolist()
    )
    for name in ("ips", "snips", "dr", "regret"):
        was, now = getattr(once, name), getattr(many, name)
        assert now.interval == pytest.approx(was.interval, rel=1e-9)
    of_log, of_many = (
        estimate_logged(rounds, reward),
        estimate_logged(repeated, Reward(reward.seen[often], reward.expected[often], "low")),
    )
    assert of_log is not None
    assert of_many is not None
    assert of_many.interval == pytest.approx(of_log.interval)
