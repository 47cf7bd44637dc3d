"""A simulated world in which every arm's outcome is known, and logs drawn from it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from router_service.measurement.rules import Choices, route
from switchcraft_training.data.table import Floats
from switchcraft_training.replay.estimators import LoggedChoices, Reward

COSTS_USD = (1.0, 0.3, 0.2, 0.1)
TURNS = 3


@dataclass(frozen=True, slots=True)
class World:
    """Conversations of `TURNS` turns: correctness and predictions of each arm, (turns, arms).

    The router is overconfident, and the turns of a conversation are alike.
    """

    correct: Floats
    probabilities: Floats

    @classmethod
    def of(cls, conversations: int, seed: int) -> World:
        """Generate a random world."""
        rng = np.random.default_rng(seed)
        skill = np.array([1.2, 0.6, 0.3, -0.2])
        difficulty = np.repeat(rng.normal(0, 1.0, (conversations, 1)), TURNS, axis=0)
        affinity = rng.normal(0, 1.0, (len(difficulty), len(skill)))
        true = 1 / (1 + np.exp(-(skill + affinity - difficulty)))
        probabilities = np.clip(true + rng.normal(0.1, 0.1, true.shape), 0.01, 0.99)
        return cls((rng.random(true.shape) < true).astype(np.float64), probabilities)

    def chosen_by(self, rule: str) -> Choices:
        """Return the arm that a rule picks for each turn."""
        return route(self.probabilities, COSTS_USD, rule)

    def value(self, choices: Choices) -> float:
        """Return the true accuracy of these choices."""
        return float(self.correct[np.arange(len(choices)), choices].mean())

    def log(
        self, conversations: int, choices: Choices, share: float, seed: int
    ) -> tuple[LoggedChoices, Reward, Choices]:
        """Draw conversations, and log choices with exploration; return also the turns drawn."""
        rng = np.random.default_rng(seed)
        drawn = rng.integers(0, len(self.probabilities) // TURNS, conversations)
        rows = (drawn[:, None] * TURNS + np.arange(TURNS)).ravel()
        policy, arms = choices[rows], self.probabilities.shape[1]
        explored = rng.random(len(rows)) < share
        chosen = np.where(explored, rng.integers(0, arms, len(rows)), policy)
        propensity = share / arms + (1 - share) * (chosen == policy)
        seen = self.correct[rows, chosen]
        numbers = np.repeat(np.arange(conversations), TURNS)
        return (
            LoggedChoices(chosen, propensity, chosen != policy, numbers),
            Reward(seen, self.probabilities[rows], "low"),
            rows,
        )
