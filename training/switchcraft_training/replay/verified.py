"""Replay of verified policies on the answers that a decision log holds.

A verified policy asks one arm after the other, and each step depends on the answers so far. A line
of the log has the answers of the arms that were asked: one arm if the gateway chose once, and all
candidates if it verified. So a line shows what a policy would have obtained only if the policy asks
the line's first arm first, and afterwards only arms whose answers the line has. Such a line is
*covered*.

A line that was chosen once is weighted with the propensity of its arm. The first candidate of a
verified line is not drawn at random, so its propensity is 1. Given the first arm, the log and the
policy continue without any randomness. Therefore a covered line weighs 1 / propensity, and the mean
over covered lines describes that part of the traffic for which the log has all answers:

- A log of choices shows only requests for which the policy accepts its first answer. Those are the
  easier ones, so the covered part is more accurate than the whole.
- A log of verified answers covers policies of the same artifact with a lower price almost
  completely, and those with a higher price as far as the log went.

For the rest, accuracy is what the verifier expects from the answers so far, and the cost is a lower
bound: the answers so far and the next arm. Limits on cost and latency are those of the request, and
unknown here; at most three arms are asked.

A verdict describes the answer that was delivered. It also applies to candidates with the same
calls. Feedback with the expected calls judges every candidate. The correctness of other candidates
is unknown, and a policy that accepts one of them is not covered in accuracy. The same holds for
weak evidence, which also describes the delivered answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import orjson

from router_service.apis.answers import ParsedAnswer, WrittenCall
from router_service.core.decision_record import AnswerContent, Content, LoggedDecision
from router_service.policies.verified import Verified
from router_service.router import Prediction, Router
from router_service.verifier.answer_features import Question, decode_calls, read_answer, relate
from router_service.verifier.steps import ArmAnswer, Step, VerificationState
from switchcraft_training.decisions.log import DecisionLog
from switchcraft_training.decisions.queries import (
    check_decision,
    judge_decision,
    logged_example,
    read_expected,
)


@dataclass(frozen=True, slots=True)
class LoggedAnswer:
    """An arm's answer in the log, with its cost and correctness; NaN if they are unknown.

    `answer` is None if its calls could not be decoded, or if the arm failed. `contradicted` is 1 if
    weak evidence speaks against the answer, and else 0. `seconds` are those until its end.
    """

    answer: ParsedAnswer | None
    cost_usd: float
    correct: float
    has_failed: bool = False
    contradicted: float = np.nan
    seconds: float = np.nan


@dataclass(frozen=True, slots=True)
class Trajectory:
    """What a verified policy does with a request, as far as the log shows.

    `expected` is the probability of a correct answer in the end, before any answer. `p_correct` is
    the same after the answers that the log has, and `cost_usd` is their cost, with the expected
    cost of the next arm if its answer is missing. `added_s` are the seconds of these answers
    without the first one; of arms that are asked in parallel, the slowest one counts. `asked` has
    all these arms in order. `accepted` is the arm whose answer is accepted, or None if the log does
    not show it.
    """

    asked: tuple[str, ...]
    expected: float
    p_correct: float
    cost_usd: float
    added_s: float
    accepted: str | None


@dataclass(frozen=True, slots=True)
class VerifiableRequest:
    """A logged request with its answers, in the order in which the arms were asked.

    `costs_usd` are the expected costs of the arms that may be asked.
    """

    question: Question
    prediction: Prediction
    costs_usd: Mapping[str, float]
    answers: Mapping[str, LoggedAnswer]

    def follow(self, router: Router, policy: Verified) -> Trajectory:
        """Follow a policy until it accepts an answer, or needs one that the log does not have."""
        candidates: list[ArmAnswer] = []
        failed: list[str] = []
        asked: list[str] = []

        def next_step() -> Step:
            state = VerificationState(policy, self.costs_usd, tuple(candidates), tuple(failed))
            return router.next_step(self.question, self.prediction, state)

        step = next_step()
        p_correct = expected = min(1.0, max(0.0, step.expected_gain))
        cost_usd = seconds = 0.0
        is_shown = step.ask[0] == next(iter(self.answers), None)
        while step.ask:
            asked += step.ask
            is_shown = is_shown and all(arm in self.answers for arm in step.ask)
            if not is_shown:
                cost_usd += sum(self.costs_usd[arm] for arm in step.ask)
                break
            seconds += max(self.answers[arm].seconds for arm in step.ask)
            for arm in step.ask:
                logged = self.answers[arm]
                cost_usd += logged.cost_usd
                if logged.has_failed:
                    failed.append(arm)
                else:
                    candidates.append(ArmAnswer(arm, logged.answer))
            step = next_step()
            best = max(step.p_correct.values(), default=expected)
            p_correct = min(1.0, best + max(0.0, step.expected_gain))
        added_s = seconds - self.answers[asked[0]].seconds if seconds else 0.0
        return Trajectory(tuple(asked), expected, p_correct, cost_usd, added_s, step.accept)


def read_answers(
    log: DecisionLog, decision: LoggedDecision, question: Question
) -> dict[str, LoggedAnswer]:
    """Return the answers to a decision's request, in the order in which the arms were asked.

    Candidates without logged content are missing. The request was checked by `read_example`.
    """
    correct, contradicted = judge_decision(log, decision), is_contradicted(log, decision)
    if not decision.candidates:
        answer = parse_answer(decision.content)
        cost_usd = np.nan if decision.actual_cost_usd is None else decision.actual_cost_usd
        return {
            decision.arm: LoggedAnswer(
                answer, cost_usd, correct, False, contradicted, decision.latency_s
            )
        }
    accepted = next(each for each in decision.candidates if each.is_accepted)
    expected = None
    if decision.id in log.feedback:
        try:
            expected = read_expected(log, decision, logged_example(decision))
        except ValueError:
            expected = None
    answers = {}
    for candidate in decision.candidates:
        has_failed = candidate.failure is not None
        if candidate.content is None and not has_failed:
            break  # what was asked afterwards depends on this answer
        answer = parse_answer(candidate.content)
        verdict: float | None = None
        is_delivered = candidate is accepted or (
            not has_failed and has_same_calls(question, answer, parse_answer(accepted.content))
        )
        if candidate is accepted:
            verdict = correct
        elif has_failed:
            verdict = None
        elif expected is not None and decision.content is not None:
            own = Content(
                request=decision.content.request,
                **dict(candidate.content or AnswerContent()),
            )
            other = decision.model_copy(update={"content": own})
            verdict = check_decision(other, logged_example(decision), expected)
        elif is_delivered:
            verdict = correct
        # An arm that failed before it answered has no cost.
        unknown_usd = 0.0 if has_failed else np.nan
        answers[candidate.arm] = LoggedAnswer(
            answer=answer,
            cost_usd=unknown_usd if candidate.cost_usd is None else candidate.cost_usd,
            correct=np.nan if verdict is None else verdict,
            has_failed=has_failed,
            contradicted=contradicted if is_delivered else np.nan,
            seconds=candidate.seconds,
        )
    return answers


def is_contradicted(log: DecisionLog, decision: LoggedDecision) -> float:
    """Return 1.0 if weak evidence speaks against a delivered answer, and else 0.0.

    Return NaN if the log has no weak evidence at all, because the gateway may not search for it.
    """
    return float(decision.id in log.evidence) if log.evidence else np.nan


def parse_answer(content: AnswerContent | None) -> ParsedAnswer | None:
    """Return a logged answer as the gateway parsed it; None if its calls could not be decoded."""
    if content is None or content.calls is None:
        return None
    calls = (
        WrittenCall("", call.name, orjson.dumps(call.arguments).decode()) for call in content.calls
    )
    return ParsedAnswer(tuple(calls), content.text or "")


def has_same_calls(
    question: Question, answer: ParsedAnswer | None, other: ParsedAnswer | None
) -> bool:
    """Return whether two answers make the same calls, as the verifier compares them."""
    read, rival = (read_answer(question, decode_calls(each)) for each in (answer, other))
    return relate(question, read, rival).is_same
