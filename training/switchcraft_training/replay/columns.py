"""The decisions of a log that are replayed, as columns; their texts are not kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from router_service.apis.conversation import parse_conversation
from router_service.core.decision_record import LoggedDecision
from router_service.core.reasons import Reason
from router_service.policies.base import Policy, most_probable
from router_service.policies.verified import Verified
from router_service.router import Prediction, Router
from router_service.verifier.answer_features import Question
from router_service.verifier.steps import UnverifiedReason
from switchcraft_training.data.learned import LearnedTools, digests_of
from switchcraft_training.data.table import Flags, Floats
from switchcraft_training.decisions.log import DecisionLog
from switchcraft_training.decisions.queries import judge_decision, read_example
from switchcraft_training.errors import DataError
from switchcraft_training.replay.estimators import Outcomes
from switchcraft_training.replay.verified import (
    LoggedAnswer,
    Trajectory,
    VerifiableRequest,
    is_contradicted,
    read_answers,
)

_VERIFIABLE = (None, UnverifiedReason.TEXT)
"""Values of `unverified` in the log with which a verified policy asks for candidates."""

CONVERSATION_BYTES = 32
"""Length of a conversation's id in the log."""

_BY_ARM = (
    "logged_probabilities", "logged_costs_usd", "predicted_probabilities", "predicted_costs_usd",
)  # fmt: skip


class SkipReason(StrEnum):
    """The reason why a decision is not replayed."""

    UNFINISHED = "without a complete answer"
    FALLBACK = "answered by a fallback instead of the chosen arm"
    VERIFIED = "with candidate answers, which are replayed only together with a verified policy"
    INCOMPLETE = "with incomplete probabilities, expected costs or propensity"
    NO_REQUEST = "without content that the artifact can read"


@dataclass(frozen=True, slots=True)
class ReplayedDecisions:
    """The decisions that are replayed, as one array with the named columns of `columns_of`.

    `trajectories` are those of verified policies, by name. `policies` are those that the log names.
    `skipped` counts the omitted decisions.
    """

    columns: NDArray[np.void]
    trajectories: Mapping[str, Trajectories]
    policies: Sequence[str]
    skipped: Counter[SkipReason]

    def take(self, rows: Flags) -> ReplayedDecisions:
        """Return some of the decisions; `rows` has shape (decisions,)."""
        parts = {name: each.take(rows) for name, each in self.trajectories.items()}
        return replace(self, columns=self.columns[rows], trajectories=parts)


def columns_of(arms: int) -> np.dtype[np.void]:
    """Return the type of a replayed decision: 141 bytes, and 32 for each arm.

    `chosen` is the arm that was asked first. `correct` and `cost_usd` are those of the whole
    request, and NaN if they are unknown; those that start with `first` are those of the first
    answer, or a prediction if they are not observed. What is predicted of an arm is NaN if it could
    not serve the request. `digest` is that of (query, tools), and 0 without a router.

    `contradicted` says whether weak evidence speaks against the delivered answer, and `p_correct`
    is the probability that it is correct, by the logged prediction or the logged verifier. NaN is
    unknown. `added_s` are the seconds of all candidates but the first. `has_known_tools` is true if
    the router's artifact has learned from the request's tools, or nearly the same ones.
    """
    return np.dtype(
        [
            ("created", "f8"),
            ("conversation", f"S{CONVERSATION_BYTES}"),
            ("chosen", "i8"),
            ("propensity", "f8"),
            ("is_explored", "?"),
            ("is_unread", "?"),
            ("correct", "f8"),
            ("cost_usd", "f8"),
            ("first_correct", "f8"),
            ("is_first_judged", "?"),
            ("first_cost_usd", "f8"),
            ("is_first_priced", "?"),
            ("contradicted", "f8"),
            ("p_correct", "f8"),
            ("first_contradicted", "f8"),
            ("first_p_correct", "f8"),
            ("added_s", "f8"),
            ("digest", "u8"),
            ("has_known_tools", "?"),
            *((name, "f8", (arms,)) for name in _BY_ARM),
        ]
    )


class Trajectories:
    """What one verified policy does with each decision, as columns; see `Trajectory`."""

    _TYPE = np.dtype(
        [
            ("first", "i8"),
            ("expected", "f8"),
            ("correct", "f8"),
            ("is_judged", "?"),
            ("expected_usd", "f8"),
            ("cost_usd", "f8"),
            ("is_priced", "?"),
            ("p_correct", "f8"),
            ("contradicted", "f8"),
            ("added_s", "f8"),
        ]
    )

    def __init__(self, rows: int) -> None:
        """Make room for this many decisions."""
        self.columns: NDArray[np.void] = np.zeros(rows, dtype=self._TYPE)

    def take(self, rows: Flags) -> Trajectories:
        """Return the columns of some of the decisions."""
        part = Trajectories(0)
        part.columns = self.columns[rows]
        return part

    def outcomes(self, detection: float) -> tuple[Outcomes, Outcomes, Outcomes, Outcomes]:
        """Return the policy's accuracy, cost, share of contradicted answers, and added seconds.

        `detection` is the expected share of wrong answers that weak evidence speaks against.
        """
        facts = self.columns
        first, added_s, contradicted = facts["first"], facts["added_s"], facts["contradicted"]
        is_traced, is_timed = ~np.isnan(contradicted), facts["is_priced"] & ~np.isnan(added_s)
        expected = detection * (1 - facts["p_correct"])
        return (
            Outcomes(first, facts["expected"], facts["correct"], facts["is_judged"]),
            Outcomes(first, facts["expected_usd"], facts["cost_usd"], facts["is_priced"]),
            Outcomes(
                first,
                detection * (1 - facts["expected"]),
                np.where(is_traced, contradicted, expected),
                is_traced,
            ),
            Outcomes(first, np.zeros(len(facts)), np.nan_to_num(added_s), is_timed),
        )


class Predicted(NamedTuple):
    """A logged request that a router could read, and the router's prediction."""

    question: Question
    prediction: Prediction
    is_unread: bool
    digest: int
    has_known_tools: bool


def read_decisions(
    log: DecisionLog,
    router: Router | None,
    verified: Mapping[str, Verified],
    tools: LearnedTools | None = None,
) -> ReplayedDecisions:
    """Read the decisions that can be replayed, with the predictions of `router`, if it is given.

    With a router, decisions without a readable request are omitted, and only arms that could serve
    the request when it was logged have a prediction. Arms that are missing in the log are excluded,
    because they have no outcomes. Decisions with candidate answers are omitted unless `verified`
    has policies, which need a router. `tools` are those that the router's artifact has learned
    from, if that is known. Raises DataError if too few decisions can be replayed, or if
    the artifact knows none of the arms.
    """
    arms = {arm: column for column, arm in enumerate(log.arms)}
    shared = {} if router is None else known_arms(router, log)
    columns = np.zeros(len(log.decisions), dtype=columns_of(len(arms)))
    trajectories = {name: Trajectories(len(columns)) for name in verified}
    skipped: Counter[SkipReason] = Counter()
    policies: set[str] = set()
    count = 0
    complete: set[str] = set()  # up to two conversations with complete answers
    for decision in log.decisions:
        reason = why_skipped(decision, with_candidates=bool(verified))
        if reason is None and len(complete) < 2:
            complete.add(decision.conversation)
        able = [arm for arm in shared if arm in decision.probabilities]
        predicted = None
        if reason is None and router is not None:
            predicted = predict_again(router, decision, tools) if able else None
            reason = SkipReason.NO_REQUEST if predicted is None else None
        if reason is not None:
            skipped[reason] += 1
            continue
        row = columns[count]
        fill_logged(row, log, decision, arms)
        if router is not None and predicted is not None:
            row["is_unread"] = predicted.is_unread
            row["digest"] = predicted.digest
            row["has_known_tools"] = predicted.has_known_tools
            for arm in able:
                probability = predicted.prediction.probabilities[shared[arm].output]
                row["predicted_probabilities"][arms[arm]] = probability
                row["predicted_costs_usd"][arms[arm]] = shared[arm].cost_usd
            if verified:
                request = VerifiableRequest(
                    question=predicted.question,
                    prediction=predicted.prediction,
                    costs_usd={arm: shared[arm].cost_usd for arm in able},
                    answers=read_answers(log, decision, predicted.question),
                )
                fill_first_answer(row, decision, request.answers)
                for name, policy in verified.items():
                    facts = trajectories[name].columns[count]
                    if row["is_unread"] or decision.unverified not in _VERIFIABLE:
                        fill_unverified(facts, row, router.artifact.manifest.choose_once.rule)
                    else:
                        fill_trajectory(facts, request, request.follow(router, policy), arms)
        policies.add(decision.policy)
        count += 1
    columns = columns[:count]
    require_conversations(log, complete, columns)
    for each in trajectories.values():
        each.columns = each.columns[:count]
    return ReplayedDecisions(columns, trajectories, sorted(policies), skipped)


def require_conversations(log: DecisionLog, complete: set[str], columns: NDArray[np.void]) -> None:
    """Raise DataError unless there are two conversations, with complete answers and replayed."""
    if len(complete) < 2:
        problem = (
            "has complete answers of fewer than two conversations, too few for intervals; log more"
            " decisions"
        )
        raise DataError(log.path, None, problem)
    if len(np.unique(columns["conversation"])) < 2:
        problem = (
            "has too few requests that another artifact can read. Log requests with"
            " decision_log.content, or replay only policies, without --artifact"
        )
        raise DataError(log.path, None, problem)


def why_skipped(decision: LoggedDecision, *, with_candidates: bool) -> SkipReason | None:
    """Return the reason why a decision cannot be replayed, or None if it can."""
    candidates = decision.candidates or ()
    if decision.ending != "complete" or decision.status >= 400:
        return SkipReason.UNFINISHED
    if decision.is_fallback or (candidates and not any(each.is_accepted for each in candidates)):
        return SkipReason.FALLBACK
    if candidates and not with_candidates:
        return SkipReason.VERIFIED
    is_priced = decision.probabilities.keys() == decision.expected_cost_usd.keys()
    is_drawn = decision.propensity is not None or candidates
    if not (is_priced and is_drawn and asked_first(decision) in decision.probabilities):
        return SkipReason.INCOMPLETE
    return None


def asked_first(decision: LoggedDecision) -> str:
    """Return the arm that the gateway asked first."""
    return decision.candidates[0].arm if decision.candidates else decision.arm


def predict_again(
    router: Router, decision: LoggedDecision, tools: LearnedTools | None
) -> Predicted | None:
    """Return a logged request with a router's prediction; None if it cannot be read."""
    try:
        example = read_example(decision)
        conversation = parse_conversation(example.request)
    except ValueError:
        return None
    question = Question(conversation, example.request["tools"])
    (digest,) = digests_of([example]).tolist()
    return Predicted(
        question=question,
        prediction=router.predict(conversation),
        is_unread=bool(conversation.unread),
        digest=digest,
        has_known_tools=tools is not None and tools.has(example),
    )


def fill_logged(
    row: np.void, log: DecisionLog, decision: LoggedDecision, arms: Mapping[str, int]
) -> None:
    """Set the columns of a decision that the log has."""
    conversation = decision.conversation.encode()
    if len(conversation) > CONVERSATION_BYTES:
        digest = blake2b(conversation, digest_size=CONVERSATION_BYTES // 2)
        conversation = digest.hexdigest().encode()
    row["created"] = decision.created
    row["conversation"] = conversation
    row["chosen"] = arms[asked_first(decision)]
    # The first candidate of a verified answer is not drawn at random.
    row["propensity"] = 1.0 if decision.propensity is None else decision.propensity
    row["is_explored"] = decision.reason == Reason.EXPLORED
    row["is_unread"] = decision.reason == Reason.UNREAD
    row["correct"] = row["first_correct"] = judge_decision(log, decision)
    cost_usd = decision.actual_cost_usd
    row["cost_usd"] = row["first_cost_usd"] = np.nan if cost_usd is None else cost_usd
    row["is_first_judged"] = row["is_first_priced"] = True
    row["contradicted"] = row["first_contradicted"] = is_contradicted(log, decision)
    candidates = decision.candidates or ()
    accepted = next((each for each in candidates if each.is_accepted), None)
    p_correct = None if accepted is None else accepted.p_correct
    if p_correct is None:
        p_correct = decision.probabilities[asked_first(decision)]
    row["p_correct"] = row["first_p_correct"] = p_correct
    by_step: dict[int, float] = {}
    for each in candidates:
        by_step[each.step] = max(by_step.get(each.step, 0.0), each.seconds)
    row["added_s"] = sum(by_step.values()) - (candidates[0].seconds if candidates else 0.0)
    for name in _BY_ARM:
        row[name] = np.nan
    for arm, probability in decision.probabilities.items():
        row["logged_probabilities"][arms[arm]] = probability
        row["logged_costs_usd"][arms[arm]] = decision.expected_cost_usd[arm]


def fill_first_answer(
    row: np.void, decision: LoggedDecision, answers: Mapping[str, LoggedAnswer]
) -> None:
    """Set the columns of the first answer to a verified request, with predictions if unknown."""
    if not decision.candidates:
        return
    candidate = decision.candidates[0]
    answer = answers.get(candidate.arm)
    correct = np.nan if answer is None else answer.correct
    cost_usd = np.nan if answer is None or answer.has_failed else answer.cost_usd
    row["is_first_judged"], row["is_first_priced"] = not np.isnan(correct), not np.isnan(cost_usd)
    p_correct = candidate.p_correct
    if p_correct is None:
        p_correct = decision.probabilities[candidate.arm]
    if np.isnan(correct):
        correct = p_correct
    if np.isnan(cost_usd):
        cost_usd = decision.expected_cost_usd[candidate.arm]
    row["first_correct"], row["first_cost_usd"] = correct, cost_usd
    row["first_contradicted"] = np.nan if answer is None else answer.contradicted
    row["first_p_correct"] = p_correct


def fill_trajectory(
    facts: np.void, request: VerifiableRequest, found: Trajectory, arms: Mapping[str, int]
) -> None:
    """Set the columns of what a verified policy does with a request."""
    accepted = None if found.accepted is None else request.answers[found.accepted]
    correct = np.nan if accepted is None else accepted.correct
    is_priced = accepted is not None and not np.isnan(found.cost_usd)
    first = found.asked[0]
    facts["first"] = arms[first]
    facts["expected"] = found.expected
    facts["correct"] = found.p_correct if np.isnan(correct) else correct
    facts["is_judged"] = not np.isnan(correct)
    facts["expected_usd"] = request.costs_usd[first]
    facts["cost_usd"] = np.nan_to_num(found.cost_usd, nan=request.costs_usd[first])
    facts["is_priced"] = is_priced
    facts["p_correct"] = found.p_correct
    facts["contradicted"] = np.nan if accepted is None else accepted.contradicted
    facts["added_s"] = found.added_s


def fill_unverified(facts: np.void, row: np.void, policy: Policy) -> None:
    """Set the columns for a request that cannot be verified: it is routed once, by this policy."""
    probabilities, costs_usd = row["predicted_probabilities"], row["predicted_costs_usd"]
    first = choose_arm(probabilities, costs_usd, bool(row["is_unread"]), policy)
    facts["first"] = first
    facts["expected"], facts["expected_usd"] = probabilities[first], costs_usd[first]
    facts["correct"], facts["cost_usd"] = row["first_correct"], row["first_cost_usd"]
    facts["is_judged"], facts["is_priced"] = row["is_first_judged"], row["is_first_priced"]
    facts["p_correct"] = row["first_p_correct"]
    facts["contradicted"] = row["first_contradicted"]


def choose_arm(probabilities: Floats, costs_usd: Floats, is_unread: bool, policy: Policy) -> int:
    """Return the arm that a policy picks for one request; NaN excludes an arm, (arms,) each."""
    able = np.flatnonzero(np.isfinite(probabilities + costs_usd))
    given = probabilities[able].tolist(), costs_usd[able].tolist()
    return int(able[most_probable(*given) if is_unread else policy.choose(*given).arm])


class KnownArm(NamedTuple):
    """An arm's place in the artifact's predictions, and its expected cost."""

    output: int
    cost_usd: float


def known_arms(router: Router, log: DecisionLog) -> dict[str, KnownArm]:
    """Return the log's arms that an artifact knows; raises DataError if it knows no arm."""
    manifest = router.artifact.manifest
    known = zip(manifest.arms, manifest.costs_usd(), strict=True)
    shared = {arm: KnownArm(i, usd) for i, (arm, usd) in enumerate(known) if arm in log.arms}
    if not shared:
        problem = (
            f"has only the arms {list(log.arms)}; the artifact knows {list(manifest.arms)}: give an"
            " artifact that knows one of the log's arms"
        )
        raise DataError(log.path, None, problem)
    return shared
