"""Replay of a decision log under other policies, or with another artifact."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

import numpy as np
import yaml

from router_service.core.artifact import Provenance
from router_service.core.errors import DataError, PolicyError
from router_service.core.messages import Conversation, parse_conversation
from router_service.core.selection import Policy, Reason, most_probable, parse_policy, select
from router_service.router import Router
from switchcraft_training.data.table import Choices, Floats
from switchcraft_training.decisions.log import DecisionLog
from switchcraft_training.decisions.queries import read_example
from switchcraft_training.evaluation.evaluate import policy_names
from switchcraft_training.evaluation.metrics import Estimate
from switchcraft_training.replay.estimators import Replayed, Reward, Rounds, logged, replay
from switchcraft_training.replay.logged import Logged, gather

log = logging.getLogger(__name__)


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
        log.warning(
            "the artifact has learned from a decision log, and %s of these %s decisions are older"
            " than it: where they are the same, it looks better here than it is; replay it on"
            " decisions of later",
            f"{before:,}",
            f"{len(known.decisions):,}",
        )
