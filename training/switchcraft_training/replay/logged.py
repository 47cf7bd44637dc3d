"""A decision log as arrays: the choices, their propensities and their outcomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from router_service.core.decision_log import LoggedDecision
from router_service.core.errors import DataError
from router_service.core.selection import Reason
from switchcraft_training.data.table import Floats
from switchcraft_training.decisions.log import DecisionLog
from switchcraft_training.decisions.queries import checked, read_example, read_expected
from switchcraft_training.replay.estimators import Reward, Rounds


class Left(StrEnum):
    """The reason why a decision is not replayed."""

    UNFINISHED = "without a complete answer"
    FALLBACK = "answered by a fallback, which says nothing of the arm that was chosen"
    UNPRICED = (
        "without probabilities and expected costs of the same arms, the chosen one among them"
    )


@dataclass(frozen=True, slots=True)
class Logged:
    """Decisions that the chosen arm answered, with outcomes, and counts of the others.

    `probabilities` and `costs_usd`, (n, arms), are the logged predictions, NaN if the arm could not
    serve the request. `correct` and `paid_usd`, (n,), are the outcomes, NaN if unknown.
    """

    decisions: tuple[LoggedDecision, ...]
    arms: tuple[str, ...]
    probabilities: Floats
    costs_usd: Floats
    correct: Floats
    paid_usd: Floats
    left: Counter[Left]

    @property
    def rounds(self) -> Rounds:
        """The logged choices and their propensities."""
        places = {arm: place for place, arm in enumerate(self.arms)}
        names = [decision.conversation for decision in self.decisions]
        _, conversations = np.unique(names, return_inverse=True)
        return Rounds(
            chosen=np.array([places[decision.arm] for decision in self.decisions]),
            propensity=np.array([decision.propensity for decision in self.decisions]),
            explored=np.array([decision.reason == Reason.EXPLORED for decision in self.decisions]),
            conversations=conversations,
        )

    @property
    def accuracy(self) -> Reward:
        """The correctness of answers, according to feedback."""
        return Reward(self.correct, self.probabilities, worse="low")

    @property
    def cost_usd(self) -> Reward:
        """The cost of answers."""
        return Reward(self.paid_usd, self.costs_usd, worse="high")

    def take(self, rows: Sequence[int]) -> Logged:
        """Return the decisions at these indices, in the given order."""
        chosen = list(rows)
        return Logged(
            decisions=tuple(self.decisions[row] for row in chosen),
            arms=self.arms,
            probabilities=self.probabilities[chosen],
            costs_usd=self.costs_usd[chosen],
            correct=self.correct[chosen],
            paid_usd=self.paid_usd[chosen],
            left=self.left,
        )


def gather(log: DecisionLog) -> Logged:
    """Gather the decisions that can be replayed.

    Raises DataError if they belong to fewer than two conversations, because that gives no interval.
    """
    left: Counter[Left] = Counter()
    kept: list[LoggedDecision] = []
    for decision in log.decisions:
        reason = _reason_to_leave(decision)
        if reason is None:
            kept.append(decision)
        else:
            left[reason] += 1
    if len({decision.conversation for decision in kept}) < 2:
        problem = (
            "has complete answers of fewer than two conversations: there is nothing to compare"
        )
        raise DataError(log.path, None, problem)
    arms = tuple(sorted({arm for decision in kept for arm in decision.probabilities}))
    return Logged(
        decisions=tuple(kept),
        arms=arms,
        probabilities=_matrix([decision.probabilities for decision in kept], arms),
        costs_usd=_matrix([decision.expected_cost_usd for decision in kept], arms),
        correct=np.array([_correct(log, decision) for decision in kept]),
        paid_usd=np.array([_or_nan(decision.actual_cost_usd) for decision in kept]),
        left=left,
    )


def _reason_to_leave(decision: LoggedDecision) -> Left | None:
    if decision.ending != "complete" or decision.status >= 400:
        return Left.UNFINISHED
    if decision.is_fallback:
        return Left.FALLBACK
    is_whole = decision.probabilities.keys() == decision.expected_cost_usd.keys()
    return None if is_whole and decision.arm in decision.probabilities else Left.UNPRICED


def _correct(log: DecisionLog, decision: LoggedDecision) -> float:
    """Return an answer's correctness by feedback, NaN if no feedback can be judged."""
    feedback = log.feedback.get(decision.id)
    if feedback is None:
        return np.nan
    if feedback.correct is not None:
        return float(feedback.correct)
    try:
        example = read_example(decision)
        expected = read_expected(log, decision, example)
    except ValueError:
        return np.nan
    if expected is None:
        return np.nan
    return _or_nan(checked(decision, example, expected))


def _matrix(rows: Sequence[Mapping[str, float]], arms: Sequence[str]) -> Floats:
    return np.array([[row.get(arm, np.nan) for arm in arms] for row in rows])


def _or_nan(value: float | None) -> float:
    return np.nan if value is None else value
