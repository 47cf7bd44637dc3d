"""The estimators: compared with hand calculations, and without support."""

from __future__ import annotations

import numpy as np
import pytest

from router_service.measurement.rules import Choices
from router_service.measurement.statistics import Estimate
from switchcraft_training.replay.estimators import (
    LoggedChoices,
    PolicyEstimate,
    Reward,
    estimate_logged,
    estimate_policies,
)

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
