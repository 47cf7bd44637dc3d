"""Replay of a decision log under other policies, or with another artifact."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import yaml
from rich import box
from rich.console import Console
from rich.table import Table

from router_service.core.artifact import Provenance
from router_service.core.decision_log import LoggedDecision
from router_service.core.errors import DataError, PolicyError
from router_service.core.messages import Conversation, parse_conversation
from router_service.core.selection import Policy, Reason, most_probable, parse_policy, select
from router_service.router import Router
from switchcraft_training.data.table import Choices, Floats
from switchcraft_training.decisions.log import DecisionLog
from switchcraft_training.decisions.queries import checked, read_example, read_expected
from switchcraft_training.evaluation.evaluate import policy_names
from switchcraft_training.evaluation.metrics import Estimate
from switchcraft_training.replay.estimators import Replayed, Reward, Rounds, logged, replay


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


logger = logging.getLogger(__name__)


class Opinion(NamedTuple):
    """A router's predictions for decisions: (n, arms) each, NaN if an arm must not be chosen.

    `unread`, (n,), is true if part of the request could not be read.
    """

    probabilities: Floats
    costs_usd: Floats
    unread: Sequence[bool]


@dataclass(frozen=True, slots=True)
class Value:
    """Estimates for the logged choices and for each policy; empty if no outcome is known."""

    chosen: Estimate | None
    policies: Mapping[str, Replayed] = field(default_factory=dict)


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
    accuracy: Value
    cost_usd: Value


NO_CONTENT = "without content that another artifact could read"
TOO_FEW_REQUESTS = (
    "holds too few requests for another artifact to read: keep them by decision_log.content, or"
    " replay policies alone, without --artifact"
)


def replay_log(found: DecisionLog, policies: Sequence[str], router: Router | None = None) -> Replay:
    """Estimate the results of policies from logged predictions or those of another artifact.

    Without policies, use those that the artifact names, or the logged ones without exploration.
    Raises DataError if too few decisions can be replayed, and PolicyError for an invalid policy.
    """
    known = gather(found)
    left = {reason.value: count for reason, count in sorted(known.left.items())}
    if router is not None:
        known, opinion, unreadable = _opinion_of(router, known, found)
        left |= {NO_CONTENT: unreadable} if unreadable else {}
        _warn_of_what_was_learned(router.artifact.manifest.provenance, known)
    else:
        unread = [decision.reason == Reason.UNREAD for decision in known.decisions]
        opinion = Opinion(known.probabilities, known.costs_usd, unread)
    targets = {
        name: _choose(opinion, policy) for name, policy in _rules(policies, router, known).items()
    }
    rounds = known.rounds
    return Replay(
        log=str(found.path),
        artifact=None if router is None else router.artifact.manifest.name,
        decisions=len(found.decisions),
        replayed=len(known.decisions),
        conversations=len(np.unique(rounds.conversations)),
        with_feedback=int((~np.isnan(known.correct)).sum()),
        explored=int((rounds.propensity < 1).sum()),
        left=left,
        accuracy=_value(rounds, known.accuracy, targets),
        cost_usd=_value(rounds, known.cost_usd, targets),
    )


def _value(rounds: Rounds, reward: Reward, targets: Mapping[str, Choices]) -> Value:
    if np.isnan(reward.seen).all():
        return Value(None)
    return Value(logged(rounds, reward), replay(rounds, reward, targets))


def _rules(policies: Sequence[str], router: Router | None, known: Logged) -> dict[str, Policy]:
    """Return the policies by display name."""
    if router is None:
        rules = policies or sorted({decision.policy for decision in known.decisions})
        return {rule: _rule(rule) for rule in rules}
    if policies:
        return {text: router.policy(text, param="--policy") for text in policies}
    named = policy_names(router.artifact.manifest.policies)
    return {name: router.policy(rule) for rule, name in named.items()}


def _rule(text: str) -> Policy:
    try:
        return parse_policy(text, param="--policy")
    except PolicyError as exc:
        problem = f"{exc.problem}; names and goals are an artifact's: give --artifact"
        raise PolicyError(text, problem, param="--policy") from exc


def _choose(opinion: Opinion, policy: Policy) -> Choices:
    """Return the arm that a policy picks for each decision, (n,), as the service would."""
    able = np.isfinite(opinion.probabilities + opinion.costs_usd)
    chosen = np.empty(len(able), dtype=np.int64)
    for row, unread in enumerate(opinion.unread):
        places = np.flatnonzero(able[row])
        says = opinion.probabilities[row, places].tolist()
        costs = opinion.costs_usd[row, places].tolist()
        pick = most_probable(says, costs) if unread else select(says, costs, policy).arm
        chosen[row] = places[pick]
    return chosen


def _opinion_of(router: Router, known: Logged, found: DecisionLog) -> tuple[Logged, Opinion, int]:
    """Let another artifact predict the decisions whose requests were logged.

    It chooses among the arms that could serve the request at that time. Arms that are missing in
    the log are excluded, because they have no outcomes. Returns these decisions, the predictions,
    and the number of other decisions. Raises DataError if too few requests were logged, or if the
    artifact knows none of the arms.
    """
    manifest = router.artifact.manifest
    shared = [arm for arm in known.arms if arm in manifest.arms]
    if not shared:
        problem = f"chose among {list(known.arms)}; the artifact knows {list(manifest.arms)}"
        raise DataError(found.path, None, problem)
    ours, theirs = (
        [arms.index(arm) for arm in shared] for arms in (known.arms, manifest.arms)
    )  # column indices
    asked = _requests(known, ours)
    kept = known.take(list(asked))
    if len({decision.conversation for decision in kept.decisions}) < 2:
        raise DataError(found.path, None, TOO_FEW_REQUESTS)
    said = np.array(router.predict_batch(list(asked.values())))[:, theirs]
    probabilities = np.full_like(kept.probabilities, np.nan)
    probabilities[:, ours] = np.where(np.isnan(kept.probabilities[:, ours]), np.nan, said)
    costs_usd = np.full_like(probabilities, np.nan)
    costs_usd[:, ours] = np.array(manifest.costs_usd())[theirs]
    unread = [bool(conversation.unread) for conversation in asked.values()]
    return kept, Opinion(probabilities, costs_usd, unread), len(known.decisions) - len(asked)


def _requests(known: Logged, columns: Sequence[int]) -> dict[int, Conversation]:
    """Return the logged requests that at least one of these arms could serve, by row."""
    read: dict[int, Conversation] = {}
    servable = np.flatnonzero(np.isfinite(known.probabilities[:, columns]).any(axis=1))
    for row in servable.tolist():
        try:
            read[row] = parse_conversation(read_example(known.decisions[row]).request)
        except ValueError:
            continue
    return read


def _warn_of_what_was_learned(provenance: Provenance, known: Logged) -> None:
    """Log a warning if the artifact may have been trained on the decisions that are replayed."""
    config = yaml.safe_load(provenance.config) or {}
    sources = [config.get("source") or {}, *config.get("also", ())]
    if not any(source.get("format") in {"decisions", "outcomes"} for source in sources):
        return
    made = datetime.fromisoformat(provenance.created).timestamp()
    before = sum(decision.created < made for decision in known.decisions)
    if before:
        logger.warning(
            "the artifact has learned from a decision log, and %s of these %s decisions are older"
            " than it: where they are the same, it looks better here than it is; replay it on"
            " decisions of later",
            f"{before:,}",
            f"{len(known.decisions):,}",
        )


Cell = Callable[[Estimate | None], str]

MARK = "*"


def print_replay(found: Replay, console: Console | None = None) -> None:
    """Print a summary of the log, the logged choices, and the estimates for each policy."""
    console = console or Console(highlight=False)
    for line in _head(found):
        console.print(line, soft_wrap=True)
    console.print(_table(found))
    for line in _notes(found):
        console.print(line, soft_wrap=True)


def _head(found: Replay) -> Iterator[str]:
    yield (
        f"{found.replayed:,} of {found.decisions:,} decisions, {found.conversations:,}"
        f" conversations; {_share(found.with_feedback, found.replayed)} have feedback,"
        f" {_share(found.explored, found.replayed)} were taken with exploration on"
    )
    for reason, count in found.left.items():
        yield f"left out: {count:,} {reason}"
    yield f"probabilities: {found.artifact or 'as logged'}"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}"


def _table(found: Replay) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("policy")
    table.add_column("estimate")
    table.add_column("accuracy, %", justify="right")
    table.add_column("USD per 1,000", justify="right")
    table.add_row(
        "what was chosen", "mean", _percent(found.accuracy.chosen), _usd(found.cost_usd.chosen)
    )
    for name in found.accuracy.policies or found.cost_usd.policies:
        table.add_section()
        got, paid = found.accuracy.policies.get(name), found.cost_usd.policies.get(name)
        for row in _rows(name, got, paid):
            table.add_row(*row)
    return table


def _rows(
    name: str, got: Replayed | None, paid: Replayed | None
) -> Iterator[tuple[str, str, str, str]]:
    either = got or paid
    mark = MARK if either is not None and (either.coverage < 1 or either.is_thin) else ""
    yield (
        name,
        f"DR{mark}",
        _percent(got.dr if got else None),
        _usd(paid.dr if paid else None),
    )
    beside = ["", ""] if either is None else _overlap(either)
    yield (
        beside[0],
        "SNIPS",
        _percent(got.snips if got else None),
        _usd(paid.snips if paid else None),
    )
    yield beside[1], "IPS", _percent(got.ips if got else None), _usd(paid.ips if paid else None)
    yield (
        "",
        f"regret{mark}",
        _percent(got.regret if got else None, signed=True),
        _usd(paid.regret if paid else None, signed=True),
    )


def _overlap(replayed: Replayed) -> list[str]:
    return [f"{replayed.same:.0%} as logged", f"effective n {replayed.effective_n:,.0f}"]


def _notes(found: Replay) -> Iterator[str]:
    yield (
        "DR: doubly robust; (SN)IPS: (self-normalised) inverse propensity; regret: worse than what"
        " was chosen by so much (negative: better), DR, paired. 95% intervals, over conversations."
    )
    if not found.accuracy.policies:
        yield "No feedback: accuracy is unknown (POST /v1/feedback)."
    elif found.with_feedback < found.replayed:
        yield "Accuracy holds if whether there is feedback does not depend on the answer."
    for name, replayed in (found.accuracy.policies or found.cost_usd.policies).items():
        if replayed.is_thin and found.explored:
            yield (
                f"{MARK} {name}: exploration took its arm, where the logged policy took another, in"
                f" {replayed.tried} decisions alone. Its intervals are too narrow: log more, or"
                " explore more."
            )
        if replayed.coverage < 1:
            yield (
                f"{MARK} {name}: in {1 - replayed.coverage:.1%} of the decisions the log could not"
                " have chosen its arm. There DR is the old router's own word, its error is in no"
                " interval, and (SN)IPS say nothing: let the gateway explore."
            )


def _percent(found: Estimate | None, *, signed: bool = False) -> str:
    return _interval(found, 100, 1, signed=signed)


def _usd(found: Estimate | None, *, signed: bool = False) -> str:
    return _interval(found, 1_000, 3, signed=signed)


def _interval(found: Estimate | None, factor: float, digits: int, *, signed: bool) -> str:
    if found is None:
        return "-"
    sign = "+" if signed else ""
    low, high = (f"{end * factor:{sign}.{digits}f}" for end in found.interval)
    return f"{found.value * factor:{sign}.{digits}f} [{low}, {high}]"
