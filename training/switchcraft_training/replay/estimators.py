"""Off-policy evaluation: estimates for a target policy from the decisions of a logged policy.

A decision shows the outcome r of one arm only. The log contains the probability of each choice, the
propensity. Decisions in which the target policy chooses the logged arm are therefore weighted, so
that they also represent those in which it chooses another arm:

    IPS     mean of w r, with the weight w = 1 / propensity if the target policy chooses the logged
            arm, else 0: inverse propensity weighting (Horvitz and Thompson, 1952)
    SNIPS   IPS divided by the mean of w: slightly biased, and less noisy (Swaminathan and
            Joachims, "The Self-Normalized Estimator for Counterfactual Learning", 2015)
    DR      mean of q(target's arm) + w (r - q(logged arm)): the expectation of an outcome model,
            and a correction of its error (Dudik, Langford, Li, "Doubly Robust Policy Evaluation",
            2011)

The outcome model q consists of the probabilities and expected costs that the artifact predicted
when it decided. The artifact was trained before the log was written, so it has not seen the
outcomes, and no cross-fitting is needed.

The estimates rest on three assumptions: the logged propensities are those of the actual draws; each
arm that the target policy chooses had a propensity above 0; and, given the request and the arm,
whether an outcome is known does not depend on the outcome (missing at random). The last assumption
fails if clients report wrong answers but not correct ones, and no estimator here corrects for that.
If the gateway could not have chosen the target's arm, DR relies on the outcome model only, and no
interval includes the model's error: `coverage` gives the share of decisions without this problem.
If exploration could have taken the target's arm but rarely did, intervals are too narrow: `tried`
counts how often it did.

The estimators are implemented here because Python 3.11 can only install Open Bandit Pipeline's
release of 2021, which resamples rounds and does not support conversations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from router_service.measurement.rules import Choices
from router_service.measurement.statistics import BOOTSTRAP_DRAWS, Estimate, ratio
from switchcraft_training.data.table import Flags, Floats

ENOUGH_TRIED = 20
"""Least number of decisions in which exploration took the target's arm, for reliable intervals.

Measured on 1,384 decisions among 8 arms (`training/EXPERIMENTS.md`): with 5 to 15 such decisions,
95% intervals of accuracy by SNIPS and DR contained the truth in 56% to 93% of logs, with 19 to 46
in 85% to 93%, and if every arm was drawn at random in 92% to 97%. Costs need more such decisions,
because a few expensive answers make up most of the cost: intervals contained the truth in 38% to
91% of logs with up to 15 such decisions, and in 84% to 93% with more.
"""

MAX_GROUPS = 20_000
"""Most groups of decisions that are resampled. If a log has more conversations, each group has
several of them. That leaves the expected intervals as they are, and their widths vary by 0.5%
(1 / sqrt(2 x groups)); 2,000 draws from a million groups would take ten minutes."""


@dataclass(frozen=True, slots=True)
class Reward:
    """A quantity to estimate, such as accuracy or cost.

    `seen` (n,) has the observed values, NaN if unknown. `expected` (n, arms) has the predictions of
    the outcome model. `worse` says which values are worse (`high` for a cost). A value is from 0 to
    `most`, and so are its estimates; a weighted mean alone could be outside.
    """

    seen: Floats
    expected: Floats
    worse: Literal["low", "high"]
    most: float = np.inf

    def within(self, found: Estimate | None) -> Estimate | None:
        """Return an estimate and its interval within the range of the values."""
        if found is None:
            return None
        value, low, high = np.clip([found.value, *found.interval], 0, self.most).tolist()
        return replace(found, value=value, interval=(low, high))


@dataclass(frozen=True, slots=True)
class LoggedChoices:
    """The logged choices and their propensities, (n,) each.

    `explored` is true if exploration took another arm than the policy's. `conversations` gives the
    number of each decision's conversation.
    """

    chosen: Choices
    propensity: Floats
    explored: Flags
    conversations: Choices


@dataclass(frozen=True, slots=True)
class PolicyEstimate:
    """Estimates for one target policy, with intervals from resampled conversations.

    `same` is the share of decisions in which the policy chooses the logged arm, `coverage` the
    share in which the gateway could have chosen the policy's arm. If `coverage` is below 1, `ips`
    and `snips` are None, and `dr` relies on the outcome model for the rest. `tried` counts the
    decisions in which exploration, against the logged policy, took this policy's arm: only these
    distinguish the two policies. `is_thin` is true if there are too few of them although the
    policies differ. `effective_n` is the number of unweighted decisions that would give the same
    precision. `mean_weight` is 1, apart from chance, if the propensities are right. `model` is the
    outcome model's mean prediction, without correction. `regret` is how much worse the policy is
    than the logged choices, from the paired differences of `dr` to the observed values.
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


def estimate_policies(
    choices: LoggedChoices, reward: Reward, targets: Mapping[str, Choices]
) -> dict[str, PolicyEstimate]:
    """Estimate the result of each target, an arm number per decision, (n,), from known outcomes."""
    known = ~np.isnan(reward.seen)
    n = int(known.sum())
    groups = _resampled_groups(choices.conversations)
    sums = []
    for target in targets.values():
        expected = reward.expected[np.arange(len(target)), target]
        agrees = target == choices.chosen
        weight = np.where(agrees, 1 / choices.propensity, 0.0)
        weighted = weight * np.where(agrees, reward.seen, 0.0)
        robust = expected + weight * np.where(agrees, reward.seen - expected, 0.0)
        parts = [np.ones(len(known)), reward.seen, weight, weighted, expected, robust]
        sums.append(_group_sums(groups, [np.where(known, part, 0.0) for part in parts]))
    drawn = _resampled_sums(np.concatenate(sums, axis=1))
    sums_by_target = drawn.reshape(len(drawn), len(targets), -1)

    estimates = {}
    for place, (name, target) in enumerate(targets.items()):
        # Each array has the sum over all decisions with a known outcome, then one sum per draw.
        count, seen, weight_sum, weighted, model, robust = sums_by_target[:, place].T
        agrees = target == choices.chosen
        weight = np.where(agrees, 1 / choices.propensity, 0.0)[known]
        # Exploration gives every arm a share, so any arm was possible if the propensity is below 1.
        coverage = float((agrees | (choices.propensity < 1))[known].mean())
        is_covered = coverage == 1.0
        tried = int((agrees & choices.explored)[known].sum())
        differs = bool((~agrees & ~choices.explored)[known].any())
        loss = seen - robust if reward.worse == "low" else robust - seen
        estimates[name] = PolicyEstimate(
            n=n,
            same=float(agrees[known].mean()),
            coverage=coverage,
            tried=tried,
            is_thin=tried < ENOUGH_TRIED and differs,
            effective_n=float(weight.sum() ** 2 / (weight**2).sum()) if weight.any() else 0.0,
            mean_weight=ratio(weight_sum, count, n) if is_covered else None,
            ips=reward.within(ratio(weighted, count, n)) if is_covered else None,
            snips=reward.within(ratio(weighted, weight_sum, n)) if is_covered else None,
            dr=reward.within(ratio(robust, count, n)),
            model=float(model[0] / count[0]),
            regret=ratio(loss, count, n),
        )
    return estimates


def estimate_logged(choices: LoggedChoices, reward: Reward) -> Estimate | None:
    """Estimate the mean of the logged choices; None if no outcome is known.

    The estimate covers all logged policies and their exploration together. It uses the same draws
    as `estimate_policies`.
    """
    known = ~np.isnan(reward.seen)
    columns = [known, np.nan_to_num(reward.seen)]
    sums = _group_sums(_resampled_groups(choices.conversations), columns)
    counts, seen = _resampled_sums(sums).T
    return ratio(seen, counts, int(known.sum()))


def _resampled_groups(conversations: Choices) -> Choices:
    """Return the number of each decision's group, (n,): its conversation, or several of them.

    Whole conversations are resampled: turns of one conversation resemble each other, so resampling
    them individually would understate the error.
    """
    _, numbers = np.unique(conversations, return_inverse=True)
    return np.asarray(numbers % MAX_GROUPS, dtype=np.int64)


def _group_sums(groups: Choices, columns: Sequence[Floats | Flags]) -> Floats:
    """Return the sums of columns, (n,) each, over each group: (groups, columns)."""
    size = int(groups.max()) + 1
    return np.stack([np.bincount(groups, column, size) for column in columns], axis=1)  # pyrefly: ignore[bad-return]


def _resampled_sums(sums: Floats) -> Floats:
    """Return the totals of `sums` (groups, columns), and those of bootstrap samples of groups.

    The result is (1 + draws, columns). Draws are made one at a time, to limit the memory.
    """
    size = len(sums)
    rng = np.random.default_rng(0)
    drawn = (np.bincount(rng.integers(0, size, size), minlength=size) @ sums
             for _ in range(BOOTSTRAP_DRAWS))  # fmt: skip
    return np.stack([sums.sum(axis=0), *drawn])
