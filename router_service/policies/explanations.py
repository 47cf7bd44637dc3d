"""Why a model answered, in one sentence that a reader without our vocabulary understands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from router_service.core.decision_record import DecisionRecord
from router_service.core.errors import PolicyError
from router_service.policies.selection import (
    DRIFT_TOLERANCE,
    Drift,
    Policy,
    Reason,
    Threshold,
    Utility,
    Verified,
    least_probability,
    most_probable,
    parse_policy,
)


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


_WITHOUT_CHOICE = {
    "pinned": "the request names this model",
    "chat": "the request has no tools, and only tool calls are routed",
    "continued": "it stored the response that the request continues",
    "undecided": "the router failed, so the most expensive arm answered",
    "unrouted": "the router knows none of the configured models, so router.chat_model answered",
}
"""Why a model answered that the router did not choose, by the reason."""


def arm_label(arm: str, model: str) -> str:
    """Return what people read for an arm: its model's name, and the arm's if it differs."""
    return arm if arm == model else f"{model} ({arm})"


def explain_record(
    record: DecisionRecord, labels: Mapping[str, str] = MappingProxyType({})
) -> ExplainedDecision:
    """Return a decision record with the explanation of what its fields say.

    `labels` has what to write for an arm, by arm; other arms have their own names.
    """
    found: Explanation | None = None
    probabilities, costs_usd = record.probabilities or {}, record.expected_cost_usd or {}
    arm = record.arm or ""
    if record.policy and arm in probabilities and arm in costs_usd:
        found = explain_choice(arm, record.reason, record.policy, probabilities, costs_usd, labels)
    sentence = f"{record.model}: {_WITHOUT_CHOICE.get(record.reason, record.reason)}."
    if found is not None:
        sentence = found.sentence
    if record.reason == "fallback":
        choice = labels.get(arm, arm)
        chosen = f"the router's choice, {choice}," if choice else "the model before it"
        sentence = f"{record.model}: the next choice, because {chosen} failed."
    elif record.reason in {"verified", "text", "ungrounded"} and record.candidates:
        accepted = next((c for c in record.candidates if c.is_accepted), record.candidates[-1])
        label = arm_label(accepted.arm, accepted.model)
        sentence = explain_candidate(
            label,
            record.reason,
            len(record.candidates),
            accepted.p_correct,
            accepted.ungrounded,
        )
    return ExplainedDecision(
        **dict(record),
        explanation=sentence,
        threshold=found and found.threshold,
        best_arm=found and found.best_arm,
        qualifying_arms=found.qualifying_arms if found else (),
        labels={arm: label for arm, label in labels.items() if arm != label},
    )


def explain_candidate(
    arm: str,
    reason: str,
    count: int,
    p_correct: float | None,
    ungrounded: Sequence[str] = (),
) -> str:
    """Return why the answer of `arm` was accepted among `count` candidates, in one sentence.

    `ungrounded` are its invented arguments of risky tools.
    """
    if ungrounded:
        values = "the value of " if len(ungrounded) == 1 else "the values of "
        return (
            f"{arm}: delivered unverified, because nobody said {values}{', '.join(ungrounded)}, and"
            f" no other model confirmed {'it' if len(ungrounded) == 1 else 'them'}."
        )
    if reason == "text":
        asked = "the first model that was asked" if count == 1 else "the first model that answered"
        return f"{arm}: {asked}; the router expected text, which is delivered without verification."
    if count == 1:
        likely = "" if p_correct is None else f" {p_correct:.0%}"
        return f"{arm}: its answer is{likely} likely to be correct, by the verifier's estimate."
    likely = "" if p_correct is None else f" ({p_correct:.0%})"
    return f"{arm}: the likeliest of {count} models' answers{likely}, by the verifier's estimate."


def explain_choice(  # noqa: PLR0912
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
    threshold: float | None = None
    if isinstance(rule, Threshold | Drift):
        threshold = max(0.0, least_probability(values, rule))
    floor = 0.0 if threshold is None else threshold - DRIFT_TOLERANCE
    qualifying = sorted(
        (each for each in arms if probabilities[each] >= floor), key=lambda a: costs_usd[a]
    )
    if reason == Reason.UNFAMILIAR:
        sentence = (
            f"{labels.get(arm, arm)}: the most accurate model on the training data, because the"
            " request is unlike that data."
        )
        return Explanation(sentence, None, best, tuple(qualifying))
    own, top = (
        f"{labels.get(arm, arm)}: {probabilities[arm]:.0%}",
        f"the best arm ({labels.get(best, best)}, {probabilities[best]:.0%})",
    )
    match reason, rule:
        case Reason.UNREAD, _:
            why = "is the highest probability, which decides because a part could not be read"
        case Reason.EXPLORED, _:
            why = "was drawn at random, to learn how all arms answer"
        case Reason.STICKY, _:
            why = "stays, because it served the conversation so far and a change would not pay"
        case Reason.SWITCHED, _:
            why = "replaces the conversation's earlier model, because the change pays"
        case Reason.RISK, _:
            why = "is the policy's choice among the arms that are sure enough for risky tools"
            if arm == best:
                why = "is the highest probability, which the offered risky tools demand"
        case Reason.ARGMAX, Threshold(theta):
            why = f"is the highest probability; no arm reaches {theta:.0%}"
        case Reason.THRESHOLD, Threshold(theta):
            why = f"reaches {theta:.0%}, and no cheaper arm does"
        case Reason.DRIFT, Drift(delta) if arm != best:
            price = _compare(costs_usd[arm], costs_usd[best])
            why = f"is within {_points(delta)} of {top} and costs {price}"
        case Reason.DRIFT, Drift(delta):
            why = f"is the highest probability, and no arm within {_points(delta)} of it is cheaper"
        case Reason.UTILITY, Utility(price_usd):
            why = f"is the best value, if a correct answer is worth {price_usd:g} USD"
            if arm != best:
                price = _compare(costs_usd[arm], costs_usd[best])
                why += f"; {top} is more likely, and this one costs {price}"
        case _:
            why = f"was chosen by {policy}"
    return Explanation(f"{own} {why}.", threshold, best, tuple(qualifying))


def _points(delta: float) -> str:
    """Return a difference of probabilities in percentage points."""
    points = round(delta * 100, 2)
    return f"{points:g} point{'' if points == 1 else 's'}"


def _compare(cost_usd: float, other_usd: float) -> str:
    """Return how a cost compares with another one, as in `3 times less` or `20% more`."""
    if cost_usd == other_usd:
        return "the same"
    low, high = sorted((cost_usd, other_usd))
    word = "less" if cost_usd < other_usd else "more"
    if low == 0:
        return "nothing" if cost_usd == 0 else "more"
    ratio = high / low
    if ratio >= 2:
        return f"{ratio:.2g} times {word}" if ratio < 10 else f"{ratio:.0f} times {word}"
    return f"{abs(cost_usd / other_usd - 1):.0%} {word}"
