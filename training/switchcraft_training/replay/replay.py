"""Replay of a decision log under other policies, or with another artifact."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import yaml
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table

from router_service.core.artifact import Provenance
from router_service.core.decision_log import LoggedDecision
from router_service.core.errors import DataError, PolicyError
from router_service.core.messages import parse_conversation
from router_service.core.selection import (
    Policy,
    Reason,
    Verified,
    choose_once,
    most_probable,
    parse_policy,
    select,
)
from router_service.router import Router
from switchcraft_training.data.table import Choices, Flags, Floats
from switchcraft_training.decisions.log import DecisionLog
from switchcraft_training.decisions.queries import check_decision, read_example, read_expected
from switchcraft_training.evaluation.evaluate import policy_names
from switchcraft_training.evaluation.metrics import Estimate
from switchcraft_training.replay.estimators import (
    LoggedChoices,
    PolicyEstimate,
    Reward,
    estimate_logged,
    estimate_policies,
)

logger = logging.getLogger(__name__)

CONVERSATION_BYTES = 32
"""Length of a conversation's id in the log."""

MARK = "*"
"""Marks estimates with a limitation, which a note below the table explains."""


class SkipReason(StrEnum):
    """The reason why a decision is not replayed."""

    UNFINISHED = "without a complete answer"
    FALLBACK = "answered by a fallback instead of the chosen arm"
    VERIFIED = "with candidate answers, which a policy that chooses once does not have"
    INCOMPLETE = "with incomplete probabilities, expected costs or propensity"
    NO_REQUEST = "without content that the artifact can read"


@dataclass(frozen=True, slots=True)
class Predictions:
    """A router's predictions for decisions: (n, arms) each, NaN if an arm must not be chosen.

    `is_unread`, (n,), is true if part of the request could not be read.
    """

    probabilities: Floats
    costs_usd: Floats
    is_unread: Flags

    def choose(self, policy: Policy) -> Choices:
        """Return the arm that a policy picks for each decision, (n,), as the service would."""
        can_serve = np.isfinite(self.probabilities + self.costs_usd)
        chosen = np.empty(len(can_serve), dtype=np.int64)
        for row, is_unread in enumerate(self.is_unread):
            columns = np.flatnonzero(can_serve[row])
            probabilities = self.probabilities[row, columns].tolist()
            costs = self.costs_usd[row, columns].tolist()
            if is_unread:
                pick = most_probable(probabilities, costs)
            else:
                pick = select(probabilities, costs, policy).arm
            chosen[row] = columns[pick]
        return chosen


@dataclass(frozen=True, slots=True)
class RewardEstimates:
    """Estimates for the logged choices and for each policy; empty if no outcome is known."""

    chosen: Estimate | None
    policies: Mapping[str, PolicyEstimate] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Replay:
    """Estimates for policies, and counts of the decisions that they rest on.

    `left` counts the omitted decisions by reason. `artifact` is None if the logged probabilities
    were used. Costs are in USD per request.
    """

    log: str
    artifact: str | None
    decisions: int
    replayed: int
    conversations: int
    with_feedback: int
    explored: int
    left: Mapping[str, int]
    accuracy: RewardEstimates
    cost_usd: RewardEstimates


def replay_log(log: DecisionLog, policies: Sequence[str], router: Router | None = None) -> Replay:
    """Estimate the results of policies from logged predictions or those of `router`'s artifact.

    If `policies` is empty, the artifact's policies are used. Without `router`, the policies in the
    log are used, without their exploration. Raises DataError if too few decisions can be replayed,
    and PolicyError for an invalid policy.
    """
    rules = parse_policies(policies, router)
    read = read_decisions(log, router)
    if router is not None:
        _warn_if_trained_on(read.columns["created"], router.artifact.manifest.provenance)
    rules = rules or {text: choose_once(parse_policy(text)) for text in sorted(read.policies)}
    columns = read.columns
    predicted = "logged" if router is None else "predicted"
    predictions = Predictions(
        probabilities=columns[f"{predicted}_probabilities"],
        costs_usd=columns[f"{predicted}_costs_usd"],
        is_unread=columns["is_unread"],
    )
    targets = {name: predictions.choose(policy) for name, policy in rules.items()}
    _, conversations = np.unique(columns["conversation"], return_inverse=True)
    choices = LoggedChoices(
        chosen=columns["chosen"],
        propensity=columns["propensity"],
        explored=columns["is_explored"],
        conversations=conversations,
    )
    accuracy = Reward(columns["correct"], columns["logged_probabilities"], worse="low")
    cost_usd = Reward(columns["cost_usd"], columns["logged_costs_usd"], worse="high")
    return Replay(
        log=str(log.path),
        artifact=None if router is None else router.artifact.manifest.name,
        decisions=len(log.decisions),
        replayed=len(columns),
        conversations=len(np.unique(conversations)),
        with_feedback=int((~np.isnan(accuracy.seen)).sum()),
        explored=int((choices.propensity < 1).sum()),
        left={reason.value: read.skipped[reason] for reason in sorted(read.skipped)},
        accuracy=_estimate(choices, accuracy, targets),
        cost_usd=_estimate(choices, cost_usd, targets),
    )


@dataclass(frozen=True, slots=True)
class ReplayedDecisions:
    """The decisions of a log that are replayed, as one array with named columns; see `columns_of`.

    `policies` are those that the log names. `skipped` counts the omitted decisions.
    """

    columns: NDArray[np.void]
    policies: frozenset[str]
    skipped: Counter[SkipReason]


def columns_of(arms: int) -> np.dtype[np.void]:
    """Return the type of a replayed decision: 100 bytes, and 32 for each arm.

    `correct`, `cost_usd` and what is predicted of an arm are NaN if they are unknown.
    """
    floats = ("f8", (arms,))
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
            ("logged_probabilities", *floats),
            ("logged_costs_usd", *floats),
            ("predicted_probabilities", *floats),
            ("predicted_costs_usd", *floats),
        ]
    )


def read_decisions(log: DecisionLog, router: Router | None) -> ReplayedDecisions:
    """Read the decisions that can be replayed, with the predictions of `router`, if it is given.

    Texts are not kept. With a router, decisions without a readable request are omitted, and only
    arms that could serve the request when it was logged have a prediction. Arms that are missing in
    the log are excluded, because they have no outcomes. Raises DataError if too few decisions can
    be replayed, or if the artifact knows none of the arms.
    """
    arms = {arm: column for column, arm in enumerate(log.arms)}
    shared = {} if router is None else known_arms(router, log)
    columns = np.zeros(len(log.decisions), dtype=columns_of(len(arms)))
    for name in columns.dtype.names or ():
        if name.endswith(("_probabilities", "_costs_usd")):
            columns[name] = np.nan
    skipped: Counter[SkipReason] = Counter()
    policies: set[str] = set()
    count = 0
    complete: set[str] = set()  # up to two conversations with complete answers
    for decision in log.decisions:
        reason = why_skipped(decision)
        if reason is not None:
            skipped[reason] += 1
            continue
        if len(complete) < 2:
            complete.add(decision.conversation)
        row = columns[count]
        row["is_unread"] = decision.reason == Reason.UNREAD
        if router is not None:
            able = [arm for arm in shared if arm in decision.probabilities]
            try:
                request = parse_conversation(read_example(decision).request) if able else None
            except ValueError:
                request = None
            if request is None:
                skipped[SkipReason.NO_REQUEST] += 1
                continue
            predicted = router.predict(request).probabilities
            row["is_unread"] = bool(request.unread)
            for arm in able:
                row["predicted_probabilities"][arms[arm]] = predicted[shared[arm].output]
                row["predicted_costs_usd"][arms[arm]] = shared[arm].cost_usd
        row["created"] = decision.created
        row["conversation"] = conversation_key(decision.conversation)
        row["chosen"] = arms[decision.arm]
        row["propensity"] = decision.propensity
        row["is_explored"] = decision.reason == Reason.EXPLORED
        row["correct"] = read_correctness(log, decision)
        row["cost_usd"] = _or_nan(decision.actual_cost_usd)
        for arm, probability in decision.probabilities.items():
            row["logged_probabilities"][arms[arm]] = probability
            row["logged_costs_usd"][arms[arm]] = decision.expected_cost_usd[arm]
        policies.add(decision.policy)
        count += 1
    if len(complete) < 2:
        problem = (
            "has complete answers of fewer than two conversations, too few for intervals; log more"
            " decisions"
        )
        raise DataError(log.path, None, problem)
    columns = columns[:count]
    if len(np.unique(columns["conversation"])) < 2:
        problem = (
            "has too few requests that another artifact can read. Log requests with"
            " decision_log.content, or replay only policies, without --artifact"
        )
        raise DataError(log.path, None, problem)
    return ReplayedDecisions(columns, frozenset(policies), skipped)


def why_skipped(decision: LoggedDecision) -> SkipReason | None:
    """Return the reason why a decision cannot be replayed, or None if it can."""
    if decision.ending != "complete" or decision.status >= 400:
        return SkipReason.UNFINISHED
    if decision.is_fallback:
        return SkipReason.FALLBACK
    if decision.candidates:
        return SkipReason.VERIFIED
    is_priced = decision.probabilities.keys() == decision.expected_cost_usd.keys()
    if not is_priced or decision.arm not in decision.probabilities or decision.propensity is None:
        return SkipReason.INCOMPLETE
    return None


def conversation_key(conversation: str) -> bytes:
    """Return at most `CONVERSATION_BYTES` that identify a conversation."""
    key = conversation.encode()
    if len(key) > CONVERSATION_BYTES:
        return blake2b(key, digest_size=CONVERSATION_BYTES // 2).hexdigest().encode()
    return key


def read_correctness(log: DecisionLog, decision: LoggedDecision) -> float:
    """Return an answer's correctness according to its feedback, or NaN without usable feedback."""
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
    return np.nan if expected is None else _or_nan(check_decision(decision, example, expected))


def parse_policies(policies: Sequence[str], router: Router | None) -> dict[str, Policy]:
    """Return the policies to replay, by display name; raises PolicyError if one is invalid."""
    if router is not None and policies:
        return {
            text: choose_once(router.policy(text, param="--policy"), param="--policy")
            for text in policies
        }
    if router is not None:
        names = policy_names(router.artifact.manifest.policies)
        named = {name: router.policy(rule) for rule, name in names.items()}
        # A verified policy depends on answers that the log does not have.
        return {name: policy for name, policy in named.items() if not isinstance(policy, Verified)}
    parsed = {}
    for text in policies:
        try:
            parsed[text] = choose_once(parse_policy(text, param="--policy"), param="--policy")
        except PolicyError as exc:
            problem = f"{exc.problem}; for a goal or a policy's name, also give --artifact"
            raise PolicyError(text, problem, param="--policy") from exc
    return parsed


class KnownArm(NamedTuple):
    """An arm's place in the artifact's predictions, and its expected cost."""

    output: int
    cost_usd: float


def known_arms(router: Router, log: DecisionLog) -> dict[str, KnownArm]:
    """Return the log's arms that an artifact knows; raises DataError if there is none."""
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


def _warn_if_trained_on(created: Floats, provenance: Provenance) -> None:
    """Log a warning if the artifact may have been trained on the decisions that are replayed.

    `created`, (n,), are the decisions' times in Unix seconds.
    """
    config = yaml.safe_load(provenance.config) or {}
    sources = [config.get("source") or {}, *config.get("also", ())]
    if not any(source.get("format") in {"decisions", "outcomes"} for source in sources):
        return
    trained = datetime.fromisoformat(provenance.created).timestamp()
    older = int((created < trained).sum())
    if older:
        logger.warning(
            "the artifact was trained on a decision log, and %s of these %s decisions are older"
            " than the artifact. If it was trained on them, the estimates are too good; replay"
            " only newer decisions",
            f"{older:,}",
            f"{len(created):,}",
        )


def _estimate(
    choices: LoggedChoices, reward: Reward, targets: Mapping[str, Choices]
) -> RewardEstimates:
    if np.isnan(reward.seen).all():
        return RewardEstimates(None)
    return RewardEstimates(
        estimate_logged(choices, reward), estimate_policies(choices, reward, targets)
    )


def _or_nan(value: float | None) -> float:
    return np.nan if value is None else value


def print_replay(found: Replay, console: Console | None = None) -> None:
    """Print a summary of the log, the logged choices, and the estimates for each policy."""
    console = console or Console(highlight=False)
    with_feedback, explored = (
        f"{count / found.replayed:.1%}" for count in (found.with_feedback, found.explored)
    )
    console.print(
        f"{found.replayed:,} of {found.decisions:,} decisions, {found.conversations:,}"
        f" conversations; {with_feedback} with feedback, {explored} logged with exploration on",
        soft_wrap=True,
    )
    for reason, count in found.left.items():
        console.print(f"left out: {count:,} {reason}", soft_wrap=True)
    console.print(f"probabilities: {found.artifact or 'as logged'}", soft_wrap=True)

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("policy")
    table.add_column("estimate")
    table.add_column("accuracy, %", justify="right")
    table.add_column("USD per 1,000", justify="right")
    table.add_row(
        "logged choices", "mean", _percent(found.accuracy.chosen), _usd(found.cost_usd.chosen)
    )
    for name, either in (found.accuracy.policies or found.cost_usd.policies).items():
        accuracy, cost = found.accuracy.policies.get(name), found.cost_usd.policies.get(name)
        mark = MARK if either.coverage < 1 or either.is_thin else ""
        same, effective_n = f"{either.same:.0%} as logged", f"effective n {either.effective_n:,.0f}"
        table.add_section()
        for label, method, attribute in (
            (name, f"DR{mark}", "dr"),
            (same, "SNIPS", "snips"),
            (effective_n, "IPS", "ips"),
            ("", f"regret{mark}", "regret"),
        ):
            is_signed = attribute == "regret"
            percent = _percent(getattr(accuracy, attribute, None), is_signed=is_signed)
            usd = _usd(getattr(cost, attribute, None), is_signed=is_signed)
            table.add_row(label, method, percent, usd)
    console.print(table)
    for note in _notes(found):
        console.print(note, soft_wrap=True)


def _notes(found: Replay) -> Iterator[str]:
    yield (
        "DR: doubly robust. IPS and SNIPS: inverse propensity weighting, plain and self-normalized."
        " Regret: the loss compared with the logged choices by DR, paired; negative is better."
        " Brackets: 95% intervals over conversations."
    )
    if not found.accuracy.policies:
        yield "No feedback: accuracy is unknown. Clients send feedback to POST /v1/feedback."
    elif found.with_feedback < found.replayed:
        yield (
            "Accuracy assumes that clients are as likely to give feedback on correct answers as on"
            " wrong ones."
        )
    for name, estimate in (found.accuracy.policies or found.cost_usd.policies).items():
        if estimate.is_thin and found.explored:
            yield (
                f"{MARK} {name}: exploration took its arm in only {estimate.tried} of the decisions"
                " in which the logged policy preferred another arm, so its intervals are too"
                " narrow. Log more decisions, or explore more."
            )
        if estimate.coverage < 1:
            yield (
                f"{MARK} {name}: in {1 - estimate.coverage:.1%} of the decisions, the gateway"
                " could not have chosen this policy's arm. For these, DR is only the logged"
                " router's prediction, and no interval includes the error of that prediction. IPS"
                " and SNIPS are not available. Turn on exploration in the gateway."
            )


def _percent(estimate: Estimate | None, *, is_signed: bool = False) -> str:
    return _interval(estimate, 100, 1, is_signed=is_signed)


def _usd(estimate: Estimate | None, *, is_signed: bool = False) -> str:
    return _interval(estimate, 1_000, 3, is_signed=is_signed)


def _interval(estimate: Estimate | None, factor: float, digits: int, *, is_signed: bool) -> str:
    if estimate is None:
        return "-"
    sign = "+" if is_signed else ""
    low, high = (f"{end * factor:{sign}.{digits}f}" for end in estimate.interval)
    return f"{estimate.value * factor:{sign}.{digits}f} [{low}, {high}]"
