"""Exploration: an arm drawn at random for a share of the requests."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Draw:
    """An arm that was drawn, and the probability of drawing it."""

    arm: int
    propensity: float


def explore(chosen: int, arms: int, share: float, draw: float) -> Draw:
    """Draw one of `arms` arms uniformly with probability `share`, or else take the chosen one.

    `draw` is uniform in [0, 1). The propensities of all arms add up to 1 (epsilon-greedy).
    """
    # A draw below `share` is uniform in [0, share), so it can also select the arm.
    arm = min(int(draw / share * arms), arms - 1) if draw < share else chosen
    return Draw(arm, share / arms + (1 - share) * (arm == chosen))
