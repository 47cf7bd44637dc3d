"""Why a model answered, in one sentence that a reader without our vocabulary understands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from router_service.core.decision_record import BudgetChange, DecisionRecord
from router_service.core.errors import PolicyError
from router_service.core.reasons import Reason
from router_service.core.record import Ending, Record
from router_service.policies.base import DRIFT_TOLERANCE, ChoiceFacts, Policy, most_probable
from router_service.policies.registry import parse_policy
from router_service.policies.verified import Verified, explain_candidate, explain_stop


class ExplainedDecision(DecisionRecord):
    """A decision record, and why its model answered."""

    explanation: str
    """Why `model` answered, in one sentence."""
    threshold: float | None = None
    """Probability that the policy demanded; None if it demands none, or if nothing was routed."""
    best_arm: str | None = None
    """The arm with the highest probability of a correct answer."""
    qualifying_arms: tuple[str, ...] = ()
    """The arms that reach the threshold, the cheapest first."""
    labels: Mapping[str, str] = {}
    """The names of the models that serve the arms now, with the arms' names in parentheses; only
    arms whose model has another name."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why the router chose an arm; the fields are those of `ExplainedDecision`."""

    sentence: str
    threshold: float | None
    best_arm: str
    qualifying_arms: tuple[str, ...]


WITHOUT_CHOICE: Mapping[str, str] = {
    Reason.PINNED: "the request names this model",
    Reason.CHAT: "the request has no tools, and only tool calls are routed",
    Reason.SESSION: "it answers coding agents' sessions: of the models whose measured success in"
    " whole coding tasks is close to the best, it is the cheapest",
    Reason.CONTINUED: "it stored the response that the request continues",
    Reason.UNDECIDED: "the router failed, so the most expensive model answered",
    Reason.UNROUTED: "the router knows none of the configured models, so router.chat_model"
    " answered",
    Reason.BUDGET: "the rest of the budget allows no dearer model",
}
"""Why a model answered that the router did not choose, by the reason."""

_ROUTED: Mapping[str, str] = {
    Reason.UNREAD: "is the highest probability, which decides because a part could not be read",
    Reason.EXPLORED: "was drawn at random, to learn how all models answer",
    Reason.STICKY: "stays, because it served the conversation so far",
    Reason.SWITCHED: "replaces the conversation's earlier model, because the change pays",
    Reason.BUDGET: "is the policy's choice among the models that the rest of the budget allows",
}
"""Why the router chose an arm, whatever the policy, by the reason. Policies explain the rest."""

_UNFAMILIAR_NOTE = "The request is unlike the training data, so the estimate is uncertain."


def arm_label(arm: str, model: str) -> str:
    """Return what people read for an arm: its model's name, and the arm's if it differs."""
    return arm if arm == model else f"{model} ({arm})"


def explain_record(record: DecisionRecord, labels: Mapping[str, str]) -> ExplainedDecision:
    """Return a decision record with the explanation of what its fields say.

    `labels` has what to write for an arm, by arm; other arms have their own names.
    """
    found = _explain_choice_of(record, labels)
    return ExplainedDecision(
        **dict(record),
        explanation=explanation_of(record, labels),
        threshold=found.threshold if found else None,
        best_arm=found.best_arm if found else None,
        qualifying_arms=found.qualifying_arms if found else (),
        labels={arm: label for arm, label in labels.items() if arm != label},
    )


def explanation_of(record: DecisionRecord | Record, labels: Mapping[str, str]) -> str:
    """Return why the model of a record answered, in one sentence."""
    model, reason = record.model or "", record.reason or ""
    if reason == Reason.FALLBACK:
        arm = record.arm or ""
        sentence = explain_fallback(model, labels.get(arm, arm))
    elif reason in Verified.reasons and (candidates := record.candidates):
        accepted = next((c for c in candidates if c.is_accepted), None)
        if accepted is None:
            label = arm_label(record.arm or model, model)
            if record.ending == Ending.CLIENT_LEFT:
                return f"{label}: the client left before an answer was accepted."
            return f"{label}: no model gave an answer that can be used."
        label = arm_label(accepted.arm or "", accepted.model)
        sentence = explain_candidate(
            label,
            reason,
            len(candidates),
            accepted.p_correct,
            accepted.ungrounded,
            stop=explain_stop(record.stop, record.policy or "", labels),
        )
    elif (found := _explain_choice_of(record, labels)) is not None:
        sentence = found.sentence
    else:
        sentence = f"{model}: {WITHOUT_CHOICE.get(reason, reason)}."
    if record.is_unfamiliar:
        sentence = note_unfamiliar(sentence, reason)
    if record.budget is not None:
        sentence = f"{sentence} {explain_budget(record.budget)}"
    return sentence


def note_unfamiliar(sentence: str, reason: str) -> str:
    """Add that the request is unlike the training data, if the sentence has an estimate."""
    has_estimate = reason not in {Reason.UNFAMILIAR, Reason.FALLBACK}
    return f"{sentence} {_UNFAMILIAR_NOTE}" if has_estimate else sentence


def explain_fallback(model: str, choice: str) -> str:
    """Return why a model answered instead of the router's choice, which is empty without one."""
    chosen = f"the router's choice, {choice}," if choice else "the model before it"
    return f"{model}: the next choice, because {chosen} failed."


def _explain_choice_of(
    record: DecisionRecord | Record, labels: Mapping[str, str]
) -> Explanation | None:
    """Return why the router chose the record's arm; None if it did not choose one."""
    probabilities, costs_usd = record.probabilities or {}, record.expected_cost_usd or {}
    arm = record.arm or ""
    if not record.policy or arm not in probabilities or arm not in costs_usd:
        return None
    reason = record.reason or ""
    return explain_choice(arm, reason, record.policy, probabilities, costs_usd, labels)


def explain_budget(change: BudgetChange) -> str:
    """Return how a budget has changed a request's policy, in one sentence."""
    asked = change.asked
    if change.asked_accuracy is not None:
        asked += f" ({change.asked_accuracy:.1%})"
    kind, _, name = change.subject.partition(":")
    return (
        f"The budget of the {kind} {name} has {change.share_left:.0%} left, so {change.policy}"
        f" ({change.expected_accuracy:.1%} correct on measured queries) replaces {asked}."
    )


def explain_choice(
    arm: str,
    reason: str,
    policy: str,
    probabilities: Mapping[str, float],
    costs_usd: Mapping[str, float],
    labels: Mapping[str, str] = MappingProxyType({}),
) -> Explanation:
    """Return why the router chose `arm`, from the values of the decision.

    `policy` is the text of a rule, such as `drift=0.05`. `probabilities` and `costs_usd` have one
    value for each arm. `labels` has what to write for an arm, by arm.
    """
    try:
        rule: Policy | Verified | None = parse_policy(policy)
    except PolicyError:  # written by a newer version
        rule = None
    arms, values = list(probabilities), list(probabilities.values())
    best = arms[most_probable(values, [costs_usd[each] for each in arms])]
    threshold = rule.least_probability(values) if isinstance(rule, Policy) else None
    if threshold is not None:
        threshold = max(0.0, threshold)
    floor = 0.0 if threshold is None else threshold - DRIFT_TOLERANCE
    qualifying = sorted(
        (each for each in arms if probabilities[each] >= floor), key=lambda a: costs_usd[a]
    )
    label = labels.get(arm, arm)
    if reason == Reason.UNFAMILIAR:
        why = (
            "the most accurate model on the training data, because the request is unlike that data"
        )
        return Explanation(f"{label}: {why}.", None, best, tuple(qualifying))
    if reason in _ROUTED:
        why = _ROUTED[reason]
    elif isinstance(rule, Policy):
        why = rule.explain(
            ChoiceFacts(
                reason=reason,
                is_most_probable=arm == best,
                best=f"the best model ({labels.get(best, best)}, {probabilities[best]:.0%})",
                cost_usd=costs_usd[arm],
                best_cost_usd=costs_usd[best],
            )
        )
    else:
        why = f"was chosen by {policy}"
    sentence = f"{label}: {probabilities[arm]:.0%} {why}."
    return Explanation(sentence, threshold, best, tuple(qualifying))
