"""Replay of a decision log under other policies, or with another artifact."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from router_service.core.errors import PolicyError
from router_service.core.measurement import Choices
from router_service.core.selection import (
    VERIFIED,
    Policy,
    Verified,
    is_verified,
    parse_policy,
)
from router_service.core.statistics import Estimate
from router_service.router import Router
from switchcraft_training.data.learned import TrainingOverlap
from switchcraft_training.data.table import Flags, Floats
from switchcraft_training.decisions.log import DecisionLog
from switchcraft_training.evaluation.evaluate import policy_names
from switchcraft_training.replay.columns import choose_arm, read_decisions
from switchcraft_training.replay.estimators import (
    LoggedChoices,
    Outcomes,
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


@dataclass(frozen=True, slots=True)
class Replay:
    """Estimates for policies, and counts of the decisions that they rest on.

    `left` counts the omitted decisions by reason. `artifact` is None if the logged probabilities
    were used; otherwise `overlap` says how many of the replayed decisions' queries it has learned
    from. `verified` names the policies that verify answers. Costs are in USD per request; if
    the coverage of a verified policy is below 1, its `dr` and `regret` are lower bounds of them.
    """

    log: str
    artifact: str | None
    overlap: TrainingOverlap | None
    decisions: int
    replayed: int
    conversations: int
    with_feedback: int
    explored: int
    left: Mapping[str, int]
    verified: Sequence[str]
    accuracy: RewardEstimates
    cost_usd: RewardEstimates


def replay_log(log: DecisionLog, policies: Sequence[str], router: Router | None = None) -> Replay:
    """Estimate the results of policies from logged predictions or those of `router`'s artifact.

    If `policies` is empty, the artifact's policies are used. Without `router`, the policies in the
    log are used, without their exploration. Decisions with candidate answers are replayed only if a
    policy is verified; for a policy that chooses once, their first candidate counts. Raises
    DataError if too few decisions can be replayed, and PolicyError for an invalid policy, or for a
    verified policy without an artifact that has a verifier.
    """
    rules = parse_policies(policies, router)
    verified = {name: rule for name, rule in rules.items() if isinstance(rule, Verified)}
    read = read_decisions(log, router, verified)
    columns = read.columns
    overlap = None
    if router is not None:
        overlap = TrainingOverlap.of_artifact(router.artifact, columns["digest"])
    predicted = "logged" if router is None else "predicted"
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
    accuracy = Reward(columns["correct"], columns["logged_probabilities"], worse="low")
    cost_usd = Reward(columns["cost_usd"], columns["logged_costs_usd"], worse="high")
    right: dict[str, Outcomes] = {}
    paid: dict[str, Outcomes] = {}
    for name, rule in (rules or {text: parse_policy(text) for text in read.policies}).items():
        if isinstance(rule, Verified):
            right[name], paid[name] = read.trajectories[name].outcomes()
        else:
            chosen = predictions.choose(rule)
            right[name], paid[name] = (
                replace(reward.of_choices(chosen), seen=columns[seen], is_observed=columns[known])
                for reward, seen, known in (
                    (accuracy, "first_correct", "is_first_judged"),
                    (cost_usd, "first_cost_usd", "is_first_priced"),
                )
            )
    return Replay(
        log=str(log.path),
        artifact=None if router is None else router.artifact.manifest.name,
        overlap=overlap,
        decisions=len(log.decisions),
        replayed=len(columns),
        conversations=len(np.unique(conversations)),
        with_feedback=int((~np.isnan(accuracy.seen)).sum()),
        explored=int((choices.propensity < 1).sum()),
        left={reason.value: read.skipped[reason] for reason in sorted(read.skipped)},
        verified=list(verified),
        accuracy=_estimate(choices, accuracy, right),
        cost_usd=_estimate(choices, cost_usd, paid),
    )


def parse_policies(policies: Sequence[str], router: Router | None) -> dict[str, Policy | Verified]:
    """Return the policies to replay, by display name; raises PolicyError if one is invalid."""
    if router is not None and policies:
        return {text: router.policy(text, param="--policy") for text in policies}
    if router is not None:
        manifest = router.artifact.manifest
        named = {
            name: router.policy(rule) for rule, name in policy_names(manifest.policies).items()
        }
        if manifest.verifier is not None and not any(map(is_verified, manifest.policies.values())):
            named[VERIFIED] = router.policy(VERIFIED)
        return named
    parsed: dict[str, Policy | Verified] = {}
    for text in policies:
        if is_verified(text):
            problem = "it judges answers, which needs an artifact with a verifier: give --artifact"
            raise PolicyError(text, problem, param="--policy")
        try:
            parsed[text] = parse_policy(text, param="--policy")
        except PolicyError as exc:
            problem = f"{exc.problem}; for a goal or a policy's name, also give --artifact"
            raise PolicyError(text, problem, param="--policy") from exc
    return parsed


def _estimate(
    choices: LoggedChoices, reward: Reward, targets: Mapping[str, Outcomes]
) -> RewardEstimates:
    if np.isnan(reward.seen).all():
        return RewardEstimates(None)
    return RewardEstimates(
        estimate_logged(choices, reward), estimate_policies(choices, reward, targets)
    )


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
    overlap = found.overlap
    if overlap is not None and overlap.learned is None:
        console.print(
            "WARNING: it is unknown whether these queries are new to the artifact, because it does"
            " not record the queries that it has learned from. If it has learned from these, its"
            " results on new traffic are worse.",
            style="bold",
            soft_wrap=True,
        )
    elif overlap is not None and overlap.learned:
        console.print(
            f"WARNING: the artifact has learned from {overlap.learned:,} of these"
            f" {overlap.queries:,} queries ({overlap.share:.1%}). Its results on new traffic are"
            " worse. Replay decisions that were logged after its training data.",
            style="bold",
            soft_wrap=True,
        )

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
        rows = [(same, "SNIPS", "snips"), (effective_n, "IPS", "ips")]
        is_bound = False
        table.add_section()
        if name in found.verified:
            covered = (f"{each.coverage:.1%}" if each else "-" for each in (accuracy, cost))
            is_bound = cost is not None and cost.coverage < 1
            rows = [(effective_n, "covered part", "covered")]
        for label, method, attribute in (
            (name, f"DR{mark}", "dr"),
            *rows,
            ("", f"regret{mark}", "regret"),
        ):
            is_signed = attribute == "regret"
            percent = _percent(getattr(accuracy, attribute, None), is_signed=is_signed)
            usd = _usd(getattr(cost, attribute, None), is_signed=is_signed)
            is_lower = is_bound and attribute != "covered"
            table.add_row(label, method, percent, f"≥ {usd}" if is_lower else usd)
            if name in found.verified and attribute == "dr":
                table.add_row(f"{either.same:.0%} begin as logged", "coverage", *covered)
    console.print(table)
    for note in _notes(found):
        console.print(note, soft_wrap=True)


def _notes(found: Replay) -> Iterator[str]:
    yield (
        "DR: doubly robust. IPS and SNIPS: inverse propensity weighting, plain and self-normalized."
        " Regret: the loss compared with the logged choices by DR, paired; negative is better."
        " Brackets: 95% intervals over conversations."
    )
    # A verdict on a verified answer says nothing about its first candidate.
    unjudged = ", or its answer has no verdict" if found.verified else ""
    if not found.accuracy.policies:
        yield "No feedback: accuracy is unknown. Clients send feedback to POST /v1/feedback."
    elif found.with_feedback < found.replayed:
        yield (
            "Accuracy assumes that clients are as likely to give feedback on correct answers as on"
            " wrong ones."
        )
    for name, estimate in (found.accuracy.policies or found.cost_usd.policies).items():
        if name in found.verified and estimate.coverage < 1:
            yield (
                f"{MARK} {name}: the log has all answers that this policy asks for, and a verdict"
                f" on the accepted one, in {estimate.coverage:.1%} of its traffic. For the rest, DR"
                " is what the verifier expects, and the cost counts only the answers so far and the"
                " next model (≥). No interval includes the error of that prediction. The covered"
                " part alone is no estimate for all traffic: it has the easier requests. Answer a"
                " part of the traffic with this policy, with decision_log.content."
            )
            continue
        if estimate.is_thin and found.explored:
            yield (
                f"{MARK} {name}: exploration took its arm in only {estimate.tried} of the decisions"
                " in which the logged policy preferred another arm, so its intervals are too"
                " narrow. Log more decisions, or explore more."
            )
        if estimate.coverage < 1:
            yield (
                f"{MARK} {name}: in {1 - estimate.coverage:.1%} of the decisions, the gateway"
                f" could not have chosen this policy's arm{unjudged}. For these, DR is only the"
                " logged router's prediction, and no interval includes the error of that"
                " prediction. IPS and SNIPS are not available. Turn on exploration in the gateway."
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
