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
from router_service.router import Prediction, Router
from switchcraft_training.data.learned import LearnedTools, digests_of
from switchcraft_training.data.table import Flags, Floats
from switchcraft_training.decisions.log import DecisionLog
from switchcraft_training.decisions.queries import is_contradicted, judge_decision, read_example
from switchcraft_training.errors import DataError

CONVERSATION_BYTES = 32
"""Length of a conversation's id in the log."""

_BY_ARM = (
    "logged_probabilities", "logged_costs_usd", "predicted_probabilities", "predicted_costs_usd",
)  # fmt: skip


class SkipReason(StrEnum):
    """The reason why a decision is not replayed."""

    UNFINISHED = "without a complete answer"
    FALLBACK = "answered by a fallback instead of the chosen arm"
    VERIFIED = "with candidate answers, which `switchcraft learn` compares"
    INCOMPLETE = "with incomplete probabilities, expected costs or propensity"
    NO_REQUEST = "without content that the artifact can read"


@dataclass(frozen=True, slots=True)
class ReplayedDecisions:
    """The decisions that are replayed, as one array with the named columns of `columns_of`.

    `policies` are those that the log names.
    `skipped` counts the omitted decisions.
    """

    columns: NDArray[np.void]
    policies: Sequence[str]
    skipped: Counter[SkipReason]

    def take(self, rows: Flags) -> ReplayedDecisions:
        """Return some of the decisions; `rows` has shape (decisions,)."""
        return replace(self, columns=self.columns[rows])


def columns_of(arms: int) -> np.dtype[np.void]:
    """Return the type of a replayed decision: 91 bytes, and 32 for each arm.

    `correct` and `cost_usd` are NaN if they are unknown. `contradicted` says whether weak evidence
    speaks against the answer; NaN is unknown. What is predicted of an arm is NaN if it could not
    serve the request. `digest` is that of (query, tools), and 0 without a router.
    `has_known_tools` is true if the router's artifact has learned from the request's tools, or
    nearly the same ones.
    """
    return np.dtype(
        [
            ("conversation", f"S{CONVERSATION_BYTES}"),
            ("chosen", "i8"),
            ("propensity", "f8"),
            ("is_explored", "?"),
            ("is_unread", "?"),
            ("correct", "f8"),
            ("cost_usd", "f8"),
            ("contradicted", "f8"),
            ("digest", "u8"),
            ("has_known_tools", "?"),
            *((name, "f8", (arms,)) for name in _BY_ARM),
        ]
    )


class Predicted(NamedTuple):
    """A logged request that a router could read, and the router's prediction."""

    prediction: Prediction
    is_unread: bool
    digest: int
    has_known_tools: bool


def read_decisions(
    log: DecisionLog, router: Router | None, tools: LearnedTools | None = None
) -> ReplayedDecisions:
    """Read the decisions that can be replayed, with the predictions of `router`, if it is given.

    With a router, decisions without a readable request are omitted, and only arms that could serve
    the request when it was logged have a prediction. Arms that are missing in the log are excluded,
    because they have no outcomes. `tools` are those that the router's artifact has learned
    from, if that is known. Raises DataError if too few decisions can be replayed, or if
    the artifact knows none of the arms.
    """
    arms = {arm: column for column, arm in enumerate(log.arms)}
    shared = {} if router is None else known_arms(router, log)
    columns = np.zeros(len(log.decisions), dtype=columns_of(len(arms)))
    skipped: Counter[SkipReason] = Counter()
    policies: set[str] = set()
    count = 0
    complete: set[str] = set()  # up to two conversations with complete answers
    for decision in log.decisions:
        reason = why_skipped(decision)
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
        if predicted is not None:
            row["is_unread"] = predicted.is_unread
            row["digest"] = predicted.digest
            row["has_known_tools"] = predicted.has_known_tools
            for arm in able:
                probability = predicted.prediction.probabilities[shared[arm].output]
                row["predicted_probabilities"][arms[arm]] = probability
                row["predicted_costs_usd"][arms[arm]] = shared[arm].cost_usd
        policies.add(decision.policy)
        count += 1
    columns = columns[:count]
    require_conversations(log, complete, columns)
    return ReplayedDecisions(columns, sorted(policies), skipped)


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


def why_skipped(decision: LoggedDecision) -> SkipReason | None:
    """Return the reason why a decision cannot be replayed, or None if it can."""
    if decision.ending != "complete" or decision.status >= 400:
        return SkipReason.UNFINISHED
    if decision.is_fallback:
        return SkipReason.FALLBACK
    if decision.candidates:
        return SkipReason.VERIFIED
    is_priced = decision.probabilities.keys() == decision.expected_cost_usd.keys()
    if not is_priced or decision.propensity is None or decision.arm not in decision.probabilities:
        return SkipReason.INCOMPLETE
    return None


def predict_again(
    router: Router, decision: LoggedDecision, tools: LearnedTools | None
) -> Predicted | None:
    """Return a logged request with a router's prediction; None if it cannot be read."""
    try:
        example = read_example(decision)
        conversation = parse_conversation(example.request)
    except ValueError:
        return None
    (digest,) = digests_of([example]).tolist()
    return Predicted(
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
    row["conversation"] = conversation
    row["chosen"] = arms[decision.arm]
    row["propensity"] = decision.propensity or np.nan  # `why_skipped` has checked it
    row["is_explored"] = decision.reason == Reason.EXPLORED
    row["is_unread"] = decision.reason == Reason.UNREAD
    row["correct"] = judge_decision(log, decision)
    cost_usd = decision.actual_cost_usd
    row["cost_usd"] = np.nan if cost_usd is None else cost_usd
    row["contradicted"] = is_contradicted(log, decision)
    for name in _BY_ARM:
        row[name] = np.nan
    for arm, probability in decision.probabilities.items():
        row["logged_probabilities"][arms[arm]] = probability
        row["logged_costs_usd"][arms[arm]] = decision.expected_cost_usd[arm]


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
