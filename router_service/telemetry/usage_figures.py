"""Sums of usage as people read them, in numbers and in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from pydantic import BaseModel

from router_service.core.money import NANO
from router_service.core.reasons import Reason
from router_service.database.schema import PPM, UsageSums
from router_service.measurement.expectations import RelativeAccuracy
from router_service.telemetry.recent_requests import ModelReasons


class UsageFigures(BaseModel):
    """Sums over requests, in USD and in numbers of answers."""

    requests: int
    errors: int
    """Requests with a status of 400 or more, or with an incomplete answer; a client that left is
    none."""
    unpriced: int
    """Answers whose cost is unknown."""
    cost_usd: float
    compared_usd: float
    """Cost of the routed requests for which the cost of the baseline model is known too."""
    baseline_usd: float
    """Cost of the same requests with the baseline model; the difference is what was saved."""
    prompt_tokens: int
    """Tokens of all requests to models. A verified request counts once for each candidate that was
    asked, because all of them are paid for; so do the next three, and costs."""
    completion_tokens: int
    cached_tokens: int
    """Tokens of prompts that providers read from their caches, which are cheaper."""
    reasoning_tokens: int
    """Part of `completion_tokens`."""
    candidates: int
    """Answers that models were asked for: one for an ordinary request, and all candidates of a
    verified one."""
    unfamiliar: int
    """Routed requests that are unlike the router's training data."""
    estimated: int
    """Routed requests with a complete answer for which the probability of a correct answer is
    known, of the model that answered and of the baseline model. The next four are about these."""
    expected_correct: float
    """Expected number of correct answers, by calibrated probabilities."""
    baseline_expected_correct: float
    """Expected number of correct answers if the baseline model had answered."""
    relative_accuracy: float | None
    """`expected_correct` as a share of `baseline_expected_correct`; null without such requests."""
    relative_accuracy_interval: tuple[float, float] | None
    """Its 95% interval, which contains chance and the measured error of the probabilities."""
    feedback_correct: int
    """Answers that clients called correct (`POST /v1/feedback`)."""
    feedback_wrong: int
    invalid_calls: int
    """Tool calls that violate their tool's schema, or name a tool that was not offered."""
    tool_errors: int
    """Tool calls whose result was an error, if `decision_log.evidence` is set; so is the next."""
    repeated_calls: int
    """Tool calls that the conversation's next turn repeated with other arguments."""

    @classmethod
    def of(cls, sums: UsageSums, **others: object) -> Self:
        """Return the figures of these sums; `others` are the fields of a subclass."""
        correct, baseline_correct = sums.correct_ppm / PPM, sums.baseline_correct_ppm / PPM
        accuracy = RelativeAccuracy.of(
            correct, baseline_correct, sums.variance_ppm / PPM, sums.error_ppm / PPM
        )
        converted = {
            "cost_usd": sums.cost_nusd / NANO,
            "compared_usd": sums.compared_nusd / NANO,
            "baseline_usd": sums.baseline_nusd / NANO,
            "expected_correct": correct,
            "baseline_expected_correct": baseline_correct,
            "relative_accuracy": accuracy and accuracy.value,
            "relative_accuracy_interval": accuracy and (accuracy.low, accuracy.high),
        }
        same = UsageFigures.model_fields.keys() - converted.keys()
        return cls.model_validate(
            {**{name: getattr(sums, name) for name in same}, **converted, **others}
        )


class UsageSummary(BaseModel):
    """What requests have cost and how accurate their answers are expected to be, in words."""

    sentence: str
    """One sentence for people who see the figures for the first time."""
    details: tuple[str, ...]
    """Sentences on how sure the first one is, and what is known of answers."""

    @classmethod
    def of(cls, figures: UsageFigures, baseline_model: str | None) -> UsageSummary:
        """Summarize figures.

        `baseline_model` is the model that costs and accuracy are compared with, if any.
        """
        return cls(
            sentence=_sentence(figures, baseline_model),
            details=(*_certainty(figures, baseline_model), *_findings(figures)),
        )


def _sentence(figures: UsageFigures, baseline_model: str | None) -> str:
    if not figures.requests:
        return "No requests."
    parts = [_count(figures.requests, "request")]
    if baseline_model is None or not (figures.estimated or figures.baseline_usd):
        return f"{parts[0]}; {_usd(figures.cost_usd)} spent."
    accuracy, saved_usd = figures.relative_accuracy, figures.baseline_usd - figures.compared_usd
    if accuracy is not None:
        parts.append(f"answers expected to be {accuracy:.0%} as accurate as {baseline_model}'s")
    against = "" if accuracy is not None else f" than with {baseline_model}"
    if not figures.baseline_usd:
        parts.append(f"{_usd(figures.cost_usd)} spent")
    elif round(saved_usd * NANO) == 0:
        parts.append("at the same cost" + against.replace("than", "as"))
    else:
        parts.append(f"{_usd(abs(saved_usd))} {'less' if saved_usd > 0 else 'more'}{against}")
    return f"{'; '.join(parts)}."


def _certainty(figures: UsageFigures, baseline_model: str | None) -> list[str]:
    """Return how sure the relative accuracy is."""
    if baseline_model is None or not figures.requests:
        return []
    interval = figures.relative_accuracy_interval
    if interval is None:
        return [
            "How accurate the answers are is not known yet: it is estimated for routed requests."
        ]
    routed = _count(figures.estimated, "routed request")
    low, high = (f"{end:.0%}" for end in interval)
    details = [f"Between {low} and {high}, by calibrated probabilities of {routed}."]
    if low == high:  # the baseline model has answered all
        details = [f"By calibrated probabilities of {routed}."]
    if figures.unfamiliar:
        are = "is" if figures.unfamiliar == 1 else "are"
        details.append(
            f"{_count(figures.unfamiliar, 'request')} {are} unlike the training data, where "
            "probabilities are less certain."
        )
    return details


def _findings(figures: UsageFigures) -> list[str]:
    """Return what is known of answers: feedback, and calls that were probably wrong."""
    found = []
    judged = figures.feedback_correct + figures.feedback_wrong
    if judged:
        found.append(
            f"Feedback: {figures.feedback_correct:,} of {_count(judged, 'answer')} correct."
        )
    for number, one, many in (
        (
            figures.invalid_calls,
            "does not fit its tool's schema",
            "do not fit their tools' schemas",
        ),
        (figures.tool_errors, "returned an error", "returned an error"),
        (
            figures.repeated_calls,
            "was repeated with other arguments",
            "were repeated with other arguments",
        ),
    ):
        if number:
            found.append(f"{_count(number, 'tool call')} {one if number == 1 else many}.")
    return found


def explain_dearest(
    model: str,
    verified_share: float | None,
    reasons: Mapping[tuple[str, str], ModelReasons],
) -> str | None:
    """Return what share of requests went to the most expensive model and why; None if none did.

    `reasons` are the requests by model and reason. `verified_share` is the expected cost of a
    verified answer as a share of this model's; None if no verified policy was measured.
    """
    total = sum(each.requests for each in reasons.values())
    own = {reason: each for (name, reason), each in reasons.items() if name == model}
    count = sum(each.requests for each in own.values())
    if not count:
        return None
    ordered = sorted(own.items(), key=lambda item: -item[1].requests)
    labels: dict[str, str] = {reason: reason.label for reason in Reason}
    why = "; ".join(f"{labels.get(name, name)} ({each.requests:,})" for name, each in ordered[:3])
    sentence = (
        f"Of the last day's {_count(total, 'request')} in the list, {count / total:.0%} went to"
        f" {model}, the most expensive model: {why}."
    )
    unverified_usd = sum(e.cost_usd for reason, e in own.items() if reason != Reason.VERIFIED)
    if verified_share is None or verified_share >= 1 or not unverified_usd:
        return sentence
    saved = _usd((1 - verified_share) * unverified_usd)
    return f"{sentence} Verified answers would have saved about {saved} of these."


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _usd(usd: float) -> str:
    """Return an amount with cents, or with two significant digits if it is less than one cent."""
    if usd == 0 or usd >= 0.01:
        return f"{usd:,.2f} USD"
    return f"{usd:.2g} USD" if usd >= 1e-4 else f"{usd:.9f}".rstrip("0") + " USD"
