"""Replay of a decision log under other policies, or with another artifact."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table

from router_service.core.errors import PolicyError
from router_service.measurement.rules import Choices
from router_service.measurement.statistics import Estimate
from router_service.policies.base import Policy
from router_service.policies.registry import choose_once, parse_policy
from router_service.policies.verified import Verified, is_verified
from router_service.router import Router
from switchcraft_training.data.learned import LearnedTools, TrainingOverlap
from switchcraft_training.data.table import Flags, Floats
from switchcraft_training.decisions.log import DecisionLog
from switchcraft_training.decisions.queries import WEAKLY_CORRECT
from switchcraft_training.evaluation.evaluate import policy_names
from switchcraft_training.replay.columns import ReplayedDecisions, choose_arm, read_decisions
from switchcraft_training.replay.estimators import (
    LoggedChoices,
    PolicyEstimate,
    Reward,
    estimate_logged,
    estimate_policies,
)

MARK = "*"
"""Marks estimates with a limitation, which a note below the table explains."""


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
        rows = zip(self.probabilities, self.costs_usd, self.is_unread, strict=True)
        return np.array([choose_arm(*row, policy) for row in rows], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class RewardEstimates:
    """Estimates for the logged choices and for each policy; empty if no outcome is known."""

    chosen: Estimate | None
    policies: Mapping[str, PolicyEstimate] = field(default_factory=dict)


Tools = Literal["unseen", "known"]
"""Whether an artifact has learned from a request's tools, or from nearly the same ones."""

Predicted = Literal["logged", "predicted"]
"""Whose predictions decide: those in the log, or those of another artifact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Estimates for policies on some decisions.

    Costs are in USD per request. `contradicted` is the share of answers that weak evidence speaks
    against, which is neither a verdict nor its complement.
    """

    replayed: int
    conversations: int
    with_feedback: int
    explored: int
    accuracy: RewardEstimates
    cost_usd: RewardEstimates
    contradicted: RewardEstimates


@dataclass(frozen=True, slots=True)
class EvidenceQuality:
    """How reliable weak evidence is, from decisions that have a verdict too.

    `contradicted` and `others` are the numbers of these decisions with and without evidence, and
    `wrong_contradicted` and `wrong_others` how many of them the verdict calls wrong.
    """

    contradicted: int
    wrong_contradicted: int
    others: int
    wrong_others: int

    @classmethod
    def of(cls, columns: NDArray[np.void]) -> Self:
        """Count the decisions with a verdict."""
        judged = columns[~np.isnan(columns["correct"])]
        is_wrong, has_evidence = judged["correct"] < 0.5, judged["contradicted"] == 1
        parts = (has_evidence, is_wrong & has_evidence, ~has_evidence, is_wrong & ~has_evidence)
        return cls(*(int(part.sum()) for part in parts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay(Results):
    """Estimates for policies on all replayed decisions, and on parts of them.

    `left` counts the omitted decisions by reason. `artifact` is None if the logged probabilities
    were used; otherwise `overlap` says how many of the replayed decisions' queries it has learned
    from. `evidence` is None if the log has no weak evidence. `by_tools` has the results by
    protocol, without parts that have fewer than two conversations; it is None if it is unknown
    which tools the artifact has learned from.
    """

    log: str
    artifact: str | None
    overlap: TrainingOverlap | None
    decisions: int
    left: Mapping[str, int]
    evidence: EvidenceQuality | None
    by_tools: Mapping[Tools, Results] | None


def replay_log(log: DecisionLog, policies: Sequence[str], router: Router | None = None) -> Replay:
    """Estimate the results of policies from logged predictions or those of `router`'s artifact.

    If `policies` is empty, the artifact's policies that choose once are used. Without `router`, the
    policies in the log are used, without their exploration. Raises DataError if too few decisions
    can be replayed, and PolicyError for an invalid policy, or for one that verifies answers.
    """
    rules = parse_policies(policies, router)
    tools = None if router is None else LearnedTools.read(router.artifact)
    read = read_decisions(log, router, tools)
    columns = read.columns
    rules = rules or {text: choose_once(parse_policy(text)) for text in read.policies}
    predicted: Predicted = "logged" if router is None else "predicted"
    by_tools: dict[Tools, Results] | None = None
    if tools is not None:
        has_known = columns["has_known_tools"]
        parts: Mapping[Tools, Flags] = {"unseen": ~has_known, "known": has_known}
        by_tools = {
            name: estimate_results(read.take(rows), rules, predicted)
            for name, rows in parts.items()
            if len(np.unique(columns["conversation"][rows])) > 1
        }
    results = estimate_results(read, rules, predicted)
    overlap = None
    if router is not None:
        overlap = TrainingOverlap.of_artifact(router.artifact, columns["digest"])
    return Replay(
        **{each.name: getattr(results, each.name) for each in fields(results)},
        log=str(log.path),
        artifact=None if router is None else router.artifact.manifest.name,
        overlap=overlap,
        decisions=len(log.decisions),
        left={reason.value: read.skipped[reason] for reason in sorted(read.skipped)},
        evidence=EvidenceQuality.of(columns) if log.evidence else None,
        by_tools=by_tools,
    )


def estimate_results(
    read: ReplayedDecisions, rules: Mapping[str, Policy], predicted: Predicted
) -> Results:
    """Estimate the results of policies by logged predictions, or by those of another artifact."""
    columns = read.columns
    predictions = Predictions(
        probabilities=columns[f"{predicted}_probabilities"],
        costs_usd=columns[f"{predicted}_costs_usd"],
        is_unread=columns["is_unread"],
    )
    _, conversations = np.unique(columns["conversation"], return_inverse=True)
    choices = LoggedChoices(
        chosen=columns["chosen"],
        propensity=columns["propensity"],
        explored=columns["is_explored"],
        conversations=conversations,
    )
    # Weak evidence speaks against some of the wrong answers. The outcome model expects the same
    # share of them for every arm and policy, and DR corrects this where the log has answers.
    p_correct = columns["logged_probabilities"]
    expected_wrong = float((1 - p_correct[np.arange(len(columns)), columns["chosen"]]).sum())
    found = float(np.nan_to_num(columns["contradicted"]).sum())
    detection = min(1.0, found / expected_wrong) if expected_wrong else 0.0
    accuracy = Reward(columns["correct"], p_correct, worse="low", most=1)
    cost_usd = Reward(columns["cost_usd"], columns["logged_costs_usd"], worse="high")
    expected = detection * (1 - p_correct)
    contradicted = Reward(columns["contradicted"], expected, worse="high", most=1)
    chosen = {name: predictions.choose(rule) for name, rule in rules.items()}

    def estimate(reward: Reward) -> RewardEstimates:
        if np.isnan(reward.seen).all() or not chosen:
            return RewardEstimates(None)
        by_policy = estimate_policies(choices, reward, chosen)
        return RewardEstimates(estimate_logged(choices, reward), by_policy)

    return Results(
        replayed=len(columns),
        conversations=len(np.unique(conversations)),
        with_feedback=int((~np.isnan(accuracy.seen)).sum()),
        explored=int((choices.propensity < 1).sum()),
        accuracy=estimate(accuracy),
        cost_usd=estimate(cost_usd),
        contradicted=estimate(contradicted),
    )


def parse_policies(policies: Sequence[str], router: Router | None) -> dict[str, Policy]:
    """Return the policies to replay, by display name; raises PolicyError if one is invalid."""
    if router is not None and not policies:
        named = policy_names(router.artifact.manifest.policies)
        rules = {name: router.policy(rule) for rule, name in named.items()}
        return {name: rule for name, rule in rules.items() if not isinstance(rule, Verified)}
    parsed: dict[str, Policy] = {}
    for text in policies:
        if is_verified(text):
            problem = "it verifies answers, which `switchcraft learn` compares on a log"
            raise PolicyError(text, problem, param="--policy")
        try:
            rule = parse_policy(text) if router is None else router.policy(text)
        except PolicyError as exc:
            problem = exc.problem
            if router is None:
                problem += "; for a goal or a policy's name, also give --artifact"
            raise PolicyError(text, problem, param="--policy") from exc
        parsed[text] = choose_once(rule, param="--policy")
    return parsed


def print_replay(found: Replay) -> None:
    """Print a summary of the log, the logged choices, and the estimates for each policy."""
    console = Console(highlight=False)
    with_feedback, explored = (
        f"{count / found.replayed:.1%}" for count in (found.with_feedback, found.explored)
    )
    console.print(
        f"{found.replayed:,} of {found.decisions:,} decisions, {found.conversations:,}"
        f" conversations; {with_feedback} with feedback, {explored} logged with exploration on"
    )
    for reason, count in found.left.items():
        console.print(f"left out: {count:,} {reason}")
    console.print(f"probabilities: {found.artifact or 'as logged'}")
    overlap = found.overlap
    if overlap is not None and overlap.learned is None:
        console.print(
            "WARNING: it is unknown whether these queries are new to the artifact, because it does"
            " not record the queries that it has learned from. If it has learned from these, its"
            " results on new traffic are worse.",
            style="bold",
        )
    elif overlap is not None and overlap.learned:
        console.print(
            f"WARNING: the artifact has learned from {overlap.learned:,} of these"
            f" {overlap.queries:,} queries ({overlap.share:.1%}). Its results on new traffic are"
            " worse. Replay decisions that were logged after its training data.",
            style="bold",
        )

    table = _table("estimate", "accuracy, %", "USD per 1,000")
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
    if found.evidence:
        console.print(_side_by_side(found))
    for note in _notes(found):
        console.print(note)


def _table(*columns: str) -> Table:
    """Return a table of policies that fits into 80 characters; only their names are wrapped."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("policy")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _side_by_side(found: Replay) -> Table:
    """Return every policy's results by DR in one row each, for all requests and for each protocol.

    Weak evidence has its own column, so that nobody takes it for a verdict.
    """
    table = _table("accuracy, %", "contradicted, %", "USD per 1,000", "covered, %")
    scales = ((100, 1), (100, 1), (1_000, 3))
    parts: dict[str, Results] = {"all requests": found}
    parts |= {f"{name} tools": part for name, part in (found.by_tools or {}).items()}
    for label, part in parts.items():
        rewards = (part.accuracy, part.contradicted, part.cost_usd)
        logged = [
            _with_error(reward.chosen, *scale)
            for reward, scale in zip(rewards, scales, strict=True)
        ]
        table.add_section()
        table.add_row(f"{label} ({part.replayed:,})", *logged, "logged")
        for name, cost in part.cost_usd.policies.items():
            cells = []
            for reward, scale in zip(rewards, scales, strict=True):
                each = reward.policies.get(name)
                text = _with_error(None if each is None else each.dr, *scale)
                cells.append(text + (MARK if each is not None and each.coverage < 1 else ""))
            covered = part.accuracy.policies.get(name) or part.contradicted.policies.get(name)
            table.add_row(f"  {name}", *cells, f"{(covered or cost).coverage:.1%}")
    return table


def _with_error(estimate: Estimate | None, factor: float, digits: int) -> str:
    if estimate is None:
        return "-"
    return f"{estimate.value * factor:.{digits}f} ±{estimate.stderr * factor:.{digits}f}"


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
    if found.evidence is not None:
        yield (
            "Contradicted: the share of answers against which the conversation's next turn speaks,"
            " by a tool's error or a repeated call. This is not the share of wrong answers: a tool"
            " may fail by itself, and an answer without calls or without a next turn is never"
            f" contradicted. {_quality(found.evidence)}"
        )
    if found.artifact is not None and found.by_tools is None:
        yield (
            "It is unknown which requests have tools that the artifact has learned from, because it"
            " does not record them. Artifacts that are trained with this version do."
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
                f" could not have chosen this policy's arm. For these, DR is only the"
                " logged router's prediction, and no interval includes the error of that"
                " prediction. IPS and SNIPS are not available. Turn on exploration in the gateway."
            )


def _quality(evidence: EvidenceQuality) -> str:
    """Say how often weak evidence and verdicts agree."""
    if not (evidence.contradicted and evidence.others):
        return (
            "How reliable it is here is unknown, because no contradicted answer has a verdict;"
            f" training assumes that {1 - WEAKLY_CORRECT:.0%} of contradicted answers are wrong."
        )
    return (
        f"In this log, {evidence.wrong_contradicted / evidence.contradicted:.0%} of"
        f" {evidence.contradicted:,} contradicted answers with a verdict are wrong, and"
        f" {evidence.wrong_others / evidence.others:.0%} of {evidence.others:,} others."
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
