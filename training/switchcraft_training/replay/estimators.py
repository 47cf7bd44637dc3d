"""What a policy would have come to, from what another one did (off-policy evaluation).

A decision tells what came of one arm alone. Where the log says how probable that choice was, those
decisions in which the other policy chooses the same arm stand for the ones in which it does not:

    IPS     mean of w r, the inverse propensity weight w = 1 / propensity where both choose the same
            arm, else 0 (Horvitz and Thompson, 1952)
    SNIPS   the same over the mean of w: a little biased, and less noisy (Swaminathan and Joachims,
            "The Self-Normalized Estimator for Counterfactual Learning", 2015)
    DR      mean of q(other arm) + w (r - q(logged arm)): what a model of the outcome expects, and
            what it was off by (Dudik, Langford, Li, "Doubly Robust Policy Evaluation", 2011)

The model q is what the artifact that decided said then, its probability and its expected cost. It
was trained before the log was written, so that it has not seen the outcomes, and nothing need be
cross-fitted.

What must hold: propensities are those that were drawn by; each arm that the other policy chooses
had one above 0; and whether an outcome is known has nothing to do with the outcome, given the
request and the arm (missing at random). Clients who complain of wrong answers and are silent about
right ones break the last, and no estimator here repairs it. Where the log could not have chosen the
arm, DR is the model's word alone, and its error is in no interval: `coverage` says how often. Where
it could have, and hardly did, intervals are too narrow: `tried` says how often it did.

Written here, in a few lines: Python 3.11 gets Open Bandit Pipeline in its release of 2021 alone,
which resamples rounds and knows no conversations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from switchcraft_training.data.table import Choices, Floats
from switchcraft_training.evaluation.metrics import BOOTSTRAP_DRAWS, Estimate, estimate

Flags = NDArray[np.bool_]

ENOUGH_TRIED = 20
"""Of 1,384 decisions among 8 arms, with 5 to 15 such decisions 95% intervals of accuracy by SNIPS
and DR held the truth in 58% to 92% of logs, with 18 to 45 in 90% to 92%, and where every arm was
drawn at random in 91% to 96%. Costs, of which a few dear answers make most, need more: 19% to 91%
with up to 15, 84% to 95% above (benchmarks/replay.py)."""


@dataclass(frozen=True, slots=True)
class Reward:
    """What is counted: (n,) as it was seen, NaN where nobody knows, and (n, arms) as expected.

    `worse` is where more of it would be a loss (`high`: a cost).
    """

    seen: Floats
    expected: Floats
    worse: Literal["low", "high"]


@dataclass(frozen=True, slots=True)
class Rounds:
    """What was chosen and how probably, (n,) each; `conversations` numbers what goes together.

    `explored`: where exploration took another arm than the policy's.
    """

    chosen: Choices
    propensity: Floats
    explored: Flags
    conversations: Choices

    def covers(self, target: Choices) -> Flags:
        """Tell where the log could have chosen the target's arm, (n,).

        Exploration gives every arm a share, and leaves none at 1.
        """
        covered: Flags = (target == self.chosen) | (self.propensity < 1)
        return covered

    def tried(self, target: Choices) -> Flags:
        """Tell where exploration took the target's arm, and the logged policy another, (n,)."""
        taken: Flags = (target == self.chosen) & self.explored
        return taken

    def departs(self, target: Choices) -> Flags:
        """Tell where the logged policy took another arm than the target, (n,)."""
        other: Flags = (target != self.chosen) & ~self.explored
        return other


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a policy would have come to, by each estimator; intervals resample conversations.

    `same`, the share of decisions in which it chooses the arm that was chosen; `coverage`, in which
    the log could have. Below 1 there is neither `ips` nor `snips`, and `dr` is the model's word for
    the rest. `tried` counts the decisions in which exploration took its arm against the logged
    policy: all that tells them apart; `is_thin` where that is too few for what they differ in.
    `effective_n` is how many decisions without weights would say as much. `mean_weight` is 1 but
    for chance where the propensities are right. `model` is what the outcome model alone
    expects. `regret` is by how much the policy does worse than what was chosen, by `dr`, paired.
    """

    n: int
    same: float
    coverage: float
    tried: int
    is_thin: bool
    effective_n: float
    mean_weight: Estimate | None
    ips: Estimate | None
    snips: Estimate | None
    dr: Estimate | None
    model: float
    regret: Estimate | None


class _Columns(NamedTuple):
    """Sums over the decisions of which the outcome is known; first the total, then each draw's."""

    known: Floats
    seen: Floats
    weight: Floats
    weighted: Floats
    model: Floats
    robust: Floats


def replay(
    rounds: Rounds, reward: Reward, targets: Mapping[str, Choices], seed: int = 0
) -> dict[str, Replayed]:
    """Estimate what each target, (n,) arms by number, would have come to.

    Raises ValueError where no outcome is known.
    """
    known = ~np.isnan(reward.seen)
    if not known.any():
        raise ValueError("no outcome is known")
    rows = [_columns(rounds, reward, target) for target in targets.values()]
    sums = _resampled(np.concatenate(rows), rounds.conversations, seed)
    parts = sums.reshape(len(sums), len(targets), -1)
    return {
        name: _replayed(rounds, reward, target, _Columns(*parts[:, place].T))
        for place, (name, target) in enumerate(targets.items())
    }


def logged(rounds: Rounds, reward: Reward, seed: int = 0) -> Estimate | None:
    """Estimate what was chosen, on the draws that `replay` resamples too; None where nobody knows.

    It is of the policies and the exploration that were logged, all together.
    """
    known = ~np.isnan(reward.seen)
    columns = np.stack([known, np.nan_to_num(reward.seen)])
    counts, seen = _resampled(columns, rounds.conversations, seed).T
    return _ratio(seen, counts, int(known.sum()))


def _weights(rounds: Rounds, target: Choices) -> Floats:
    return np.where(target == rounds.chosen, 1 / rounds.propensity, 0.0)


def _columns(rounds: Rounds, reward: Reward, target: Choices) -> Floats:
    """Return what `_Columns` sums, (6, n); nothing of a decision of which no outcome is known."""
    each = np.arange(len(target))
    known = ~np.isnan(reward.seen)
    weight = _weights(rounds, target)
    model = reward.expected[each, target]
    off = reward.seen - reward.expected[each, rounds.chosen]
    columns = [np.ones(len(target)), reward.seen, weight, weight * reward.seen, model]
    return np.where(known, np.stack([*columns, model + weight * off]), 0.0)


def _resampled(columns: Floats, conversations: Choices, seed: int) -> Floats:
    """Return the sums of columns (columns, n), then those of resampled conversations.

    The turns of a conversation resemble each other: resampled one by one they would seem to say
    more than they do. (1 + draws, columns); drawn one at a time, for logs are long.
    """
    _, numbers = np.unique(conversations, return_inverse=True)
    size = int(numbers.max()) + 1
    sums = np.stack([np.bincount(numbers, column, size) for column in columns], axis=1)
    rng = np.random.default_rng(seed)
    drawn = (np.bincount(rng.integers(0, size, size), minlength=size) @ sums
             for _ in range(BOOTSTRAP_DRAWS))  # fmt: skip
    return np.stack([sums.sum(axis=0), *drawn])


def _ratio(part: Floats, whole: Floats, n: int) -> Estimate | None:
    shares = np.divide(part, whole, out=np.full(len(part), np.nan), where=whole > 0)
    return estimate(float(shares[0]), shares[1:], n)


def _replayed(rounds: Rounds, reward: Reward, target: Choices, sums: _Columns) -> Replayed:
    known = ~np.isnan(reward.seen)
    n, weight = int(known.sum()), _weights(rounds, target)[known]
    coverage = float(rounds.covers(target)[known].mean())
    is_covered = coverage == 1.0
    tried = int(rounds.tried(target)[known].sum())
    behind = sums.seen - sums.robust if reward.worse == "low" else sums.robust - sums.seen
    return Replayed(
        n=n,
        same=float((target == rounds.chosen)[known].mean()),
        coverage=coverage,
        tried=tried,
        is_thin=tried < ENOUGH_TRIED and bool(rounds.departs(target)[known].any()),
        effective_n=float(weight.sum() ** 2 / (weight**2).sum()) if weight.any() else 0.0,
        mean_weight=_ratio(sums.weight, sums.known, n) if is_covered else None,
        ips=_ratio(sums.weighted, sums.known, n) if is_covered else None,
        snips=_ratio(sums.weighted, sums.weight, n) if is_covered else None,
        dr=_ratio(sums.robust, sums.known, n),
        model=float(sums.model[0] / sums.known[0]),
        regret=_ratio(behind, sums.known, n),
    )
