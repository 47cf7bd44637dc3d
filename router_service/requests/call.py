"""One request, from its arrival to its record."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import orjson

from router_service.access.key import NO_KEY, Key
from router_service.access.limits import Admission
from router_service.apis.registry import read_usage
from router_service.apis.usage import CHARACTERS_PER_TOKEN, Usage
from router_service.checker.usability import AnswerTerms
from router_service.core.decision_record import VerificationStop
from router_service.core.errors import Failure
from router_service.core.reasons import Reason
from router_service.core.record import CLIENT_LEFT, Ending, Record
from router_service.core.resources import Stage, Timer
from router_service.policies.explanations import (
    WITHOUT_CHOICE,
    arm_label,
    explain_choice,
    explain_fallback,
    note_unfamiliar,
)
from router_service.policies.verified import explain_candidate, explain_stop
from router_service.requests.candidates import Attempt, Candidate, answer_cost_usd
from router_service.requests.parsing import ParsedRequest
from router_service.requests.planning import Plan
from router_service.settings import Deployment, Model
from router_service.tracing import UNTRACED, Trace
from router_service.upstream.client import ReserveMemory, unlimited
from router_service.upstream.translation import RunInThread
from router_service.verifier.steps import NO_LIMITS, UnverifiedReason, VerificationLimits

UNMEASURED_NOTE = "The router has not measured this model and estimates its accuracy by its price."


@dataclass(slots=True)
class Call:
    """One request, from its arrival to its record; the only value that changes on its way.

    Each step sets what later steps need: the server its ids and key, admission its grant, planning
    its plan, and upstreams its candidates. `request` and `plan` exist once they are set.
    """

    decision_id: str
    request_id: str
    """The client's id for the request, or ours."""
    started_s: float
    """Arrival, by the clock of `time.perf_counter`."""
    method: str = "POST"
    path: str = ""
    """The request's path, without its query."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """The first value of each header, by its name in lower case. Starlette's `Headers` decodes and
    compares every header for each look-up."""
    trace: Trace = UNTRACED
    key: Key = NO_KEY
    """The client's API key."""
    hold_memory: ReserveMemory = unlimited
    """Counts bytes towards the request's slot until it ends; raises OverloadedError."""
    admission: Admission | None = None
    """What the request has taken of limits and budgets; None until it is admitted."""
    refusal: str | None = None
    """Code of the error with which the gateway has refused the request; None if it has not."""
    is_logged: bool = False
    """Whether the request has been recorded; each request has one record."""
    record: Record | None = None
    """The record of a planned request, once it has ended."""

    deadline_s: float = math.inf
    """When the time that the client allows is over, by the event loop's clock."""
    query: str = ""
    """Query string for upstreams that speak the client's API."""
    timer: Timer | None = None
    """Timer of the gateway's own steps, from reading the body to the choice."""
    decision_s: float = 0.0
    """Duration of these steps without the body."""
    is_late: bool = False
    """Whether they took longer than the latency budget."""
    limits: VerificationLimits = NO_LIMITS
    """Limits of verification; they count only if the answer is verified."""
    request: ParsedRequest = field(init=False)
    plan: Plan = field(init=False)

    asked_s: float = field(default_factory=time.monotonic)
    """When the first upstream was asked, by the event loop's clock: `timeouts.total_s` counts from
    then. All attempts share it, so that retries and fallbacks do not multiply the time."""
    conversation: str | None = None
    """Id of the conversation, whose requests go to the same deployment of a model while it works,
    because a prompt is cached by one account; None if no choice depends on it."""
    candidates: list[Candidate] = field(default_factory=list)
    """The answer without verification, and then those of the arms that verification has asked.
    Answers without verification that cannot be used precede the one that is delivered."""
    accepted: Candidate = field(init=False)
    """The candidate whose answer the client gets: the one without verification, unless verification
    accepts another one."""
    status: int = CLIENT_LEFT
    ending: Ending = Ending.CLIENT_LEFT
    verification_steps: int = 0
    """Number of times that arms were asked for candidates."""
    stop: VerificationStop | None = None
    """Why no further arm was asked, if the answer is verified."""
    added_s: float = 0.0
    """Time from the first complete candidate until one was accepted."""
    verifier_failed: bool = False
    """Whether the router failed to judge the candidates."""
    was_cut_off: bool = False
    """Whether the gateway's shutdown ended the request."""
    why: str | None = None
    """Why the router chose the arm, in one sentence, if the headers say so."""

    @property
    def stages(self) -> Sequence[Stage]:
        """Durations of the gateway's own steps."""
        return () if self.timer is None else self.timer.stages

    @property
    def team(self) -> str | None:
        """Name of the API key's team, or None if it has none."""
        return None if self.key.team is None else self.key.team.name

    def begin(self, plan: Plan, run_in_thread: RunInThread) -> None:
        """Begin to ask the models of a plan, the chosen one first."""
        self.plan, self.request = plan, plan.request
        self.conversation, translation = plan.conversation_id, plan.request.translation
        if translation is not None:
            translation.reserve_memory, translation.run_in_thread = self.hold_memory, run_in_thread
        self.asked_s = time.monotonic()
        self.ask(plan.models[0])

    def ask(self, model: Model) -> Candidate:
        """Add the candidate whose answer the client gets unless another one is accepted."""
        self.accepted = candidate = Candidate(model, trace=self.trace)
        self.candidates.append(candidate)
        return candidate

    def end_s(self, deployment: Deployment) -> float:
        """Return when an answer of a deployment must be complete, by the event loop's clock."""
        return min(self.asked_s + deployment.timeouts.total_s, self.deadline_s)

    def latest_end_s(self, model: Model) -> float:
        """Return when the last of a model's deployments must have answered."""
        total_s = max([deployment.timeouts.total_s for deployment in model.deployments])
        return min(self.asked_s + total_s, self.deadline_s)

    def end(self, status: int, ending: Ending) -> None:
        """Set the status that the client gets, and how the answer ended."""
        self.status, self.ending = status, ending

    def terms_for(self, candidate: Candidate) -> AnswerTerms | None:
        """Return what a candidate's answer may contain; None if it is not read.

        With `router.fallback_on_refusal`, a refusal is no answer if the candidate is to be
        verified, or if it is the first one that refuses.
        """
        terms = self.request.terms
        if terms is None or not self.plan.planner.fallback_on_refusal:
            return terms
        earlier = (each.answer for each in self.candidates if each is not candidate)
        has_refused = any(answer is not None and answer.is_refusal for answer in earlier)
        return replace(terms, may_refuse=has_refused and candidate.arm is None)

    @property
    def asked(self) -> Mapping[str, Candidate]:
        """The candidates of verification whose arms got the request, by arm, in order.

        The others count towards no limit, and nobody bills them. For example, all circuits were
        open, or no connection was made in time.
        """
        return {each.arm: each for each in self.candidates if each.arm and each.was_asked}

    @property
    def is_fallback(self) -> bool:
        """Whether a model other than the chosen one answers."""
        # Compared by name, because a model is copied without the deployments that cannot answer.
        plan = self.plan
        return self.accepted.model.name != plan.models[0].name and plan.verified is None

    @property
    def reason(self) -> Reason:
        """Why the model answers."""
        plan = self.plan
        if plan.unverified is UnverifiedReason.TEXT:
            return Reason.TEXT
        if plan.unverified is UnverifiedReason.UNGROUNDED:
            return Reason.UNGROUNDED
        if plan.verified is not None:
            return Reason.VERIFIED
        return Reason.FALLBACK if self.is_fallback else plan.reason

    @property
    def named(self) -> Candidate:
        """The candidate that records name: the accepted one, if an upstream was tried for it.

        If no candidate of verification was accepted, it is the one whose error the client got, or
        else the last that was tried.
        """
        accepted = self.accepted
        if accepted.attempts:
            return accepted
        tried = [each for each in self.candidates if each.attempts]
        if not tried:
            return accepted
        return next((each for each in reversed(tried) if each.error is accepted.error), tried[-1])

    @property
    def arm(self) -> str | None:
        """The arm of the candidate that records name, or else the chosen arm."""
        return self.named.arm or (self.plan.decision.arm if self.plan.decision else None)

    @property
    def attempts(self) -> list[Attempt]:
        """Deployments that were tried for all candidates."""
        return [attempt for candidate in self.candidates for attempt in candidate.attempts]

    @property
    def cost_usd(self) -> float | None:
        """Cost of all candidates; None if a part of it is unknown."""
        known: list[float] = []
        for candidate in self.candidates:
            cost_usd = candidate.cost_usd
            if cost_usd is not None:
                known.append(cost_usd)
            elif candidate.usage is not None:
                return None
        return sum(known) if known else None

    def settle(self, candidate: Candidate) -> None:
        """Set what a candidate took and cost; its usage is estimated if it is not reported.

        Does nothing if that is known already: a whole answer is settled before it is sent.

        Providers bill cancelled, broken and rejected answers too, and at least the prompt of each
        attempt. They bill no request that they did not get, or to which they reported an error.
        """
        if candidate.seconds:
            return
        candidate.seconds = time.perf_counter() - candidate.started_s
        opened, request = candidate.opened, self.request
        completion_tokens: int | None = None
        lost = candidate.attempts if opened is None else candidate.attempts[:-1]
        lost = [attempt for attempt in lost if attempt.is_billed]
        if opened is None:
            names = [attempt.model for attempt in lost]
            if candidate.model.name in names:
                del lost[names.index(candidate.model.name)]
                completion_tokens = 0
        elif opened.reader is not None:
            candidate.identity = opened.reader.identity
            candidate.usage = opened.reader.usage
            completion_tokens = opened.reader.written_tokens
        else:
            parsed_usage = candidate.answer.usage if candidate.answer else None
            candidate.usage = candidate.usage or parsed_usage or read_usage(opened.value)
            # Freed, because it is much larger than the body, and the client may read slowly.
            opened.value = None
            if opened.status < 400:
                size_bytes = candidate.unread_bytes or len(opened.body)
                is_text = request.endpoint.is_routed
                completion_tokens = size_bytes // CHARACTERS_PER_TOKEN if is_text else 0
        prompt_tokens = -(-request.body.size_bytes // CHARACTERS_PER_TOKEN)
        if candidate.usage is None and completion_tokens is not None:
            candidate.usage = Usage(prompt_tokens, completion_tokens, is_estimated=True)
        lost_usd = 0.0
        for attempt in lost:
            named = (each for each in self.plan.models if each.name == attempt.model)
            model = next(named, candidate.model)
            prompt = Usage(prompt_tokens, 0, is_estimated=True)
            attempt.lost_usd = answer_cost_usd(model, prompt, 0.0) or 0.0
            lost_usd += attempt.lost_usd
        if candidate.was_asked:
            usage = candidate.usage
            candidate.answer_usd = answer_cost_usd(candidate.model, usage, candidate.seconds)
        candidate.cost_usd = candidate.answer_usd
        if lost_usd and (candidate.answer_usd is not None or candidate.usage is None):
            candidate.cost_usd = (candidate.answer_usd or 0.0) + lost_usd

    def decision_headers(self, *, with_cost: bool = False) -> list[tuple[bytes, bytes]]:
        """Return the response headers that describe the decision, and the cost if it is known."""
        plan, accepted, policy = self.plan, self.accepted, self.plan.policy
        reason = self.reason
        self.why = self._explain(reason)
        values: dict[bytes, str | None] = {
            b"x-switchcraft-decision-id": self.decision_id,
            b"x-switchcraft-model": accepted.model.name,
            b"x-switchcraft-reason": reason,
            b"x-switchcraft-attempts": str(sum([len(each.attempts) for each in self.candidates])),
            b"x-switchcraft-policy": None if policy is None else str(policy),
            b"x-switchcraft-why": self.why,
            b"x-switchcraft-unverified": plan.unverified,
            b"x-switchcraft-risk": plan.risk,
        }
        if plan.decision is not None and plan.decision.familiarity is not None:
            values[b"x-switchcraft-familiarity"] = f"{plan.decision.familiarity:.4f}"
        allowance = None if self.admission is None else self.admission.allowance
        if allowance is not None:
            values[b"x-switchcraft-budget-left-usd"] = f"{max(0.0, allowance.left_usd):.6f}"
        if plan.budget is not None:
            values[b"x-switchcraft-budget-policy"] = plan.budget.policy
            values[b"x-switchcraft-expected-accuracy"] = f"{plan.budget.expected_accuracy:.3f}"
        if accepted.arm is not None:
            values[b"x-switchcraft-candidates"] = str(len(self.asked))
            values[b"x-switchcraft-ungrounded"] = ", ".join(accepted.ungrounded) or None
            if accepted.p_correct is not None:
                values[b"x-switchcraft-p-correct"] = f"{accepted.p_correct:.4f}"
        if with_cost and (cost_usd := self.cost_usd) is not None:
            values[b"x-switchcraft-cost-usd"] = f"{cost_usd:.10f}"
        return [
            # Model names may be in any script; JSON escapes what a header cannot carry.
            (name, value.encode() if value.isascii() else orjson.dumps(str(value)))
            for name, value in values.items()
            if value is not None
        ]

    def _explain(self, reason: Reason) -> str | None:
        """Return why the model answers; None if the reason says everything."""
        accepted, decision = self.accepted, self.plan.decision
        if accepted.failure == Failure.UNUSABLE and accepted.error is not None:
            label = arm_label(accepted.arm or accepted.model.name, accepted.model.name)
            sentence = (
                f"{label}: no model gave an answer that can be used; this one"
                f" {accepted.error.problem}."
            )
        elif accepted.arm is not None:
            verified = self.plan.verified
            sentence = explain_candidate(
                arm_label(accepted.arm, accepted.model.name),
                reason,
                len(self.asked),
                accepted.p_correct,
                accepted.ungrounded,
                stop=explain_stop(
                    self.stop, str(verified) if verified else "", self.plan.planner.labels
                ),
            )
        elif reason == Reason.FALLBACK:
            choice = "" if decision is None else decision.arm
            labels, first = self.plan.planner.labels, self.candidates[0]
            if first.failure == Failure.UNUSABLE and first.error is not None:
                return f"{accepted.model.name}: {first.model.name} {first.error.problem}."
            return explain_fallback(accepted.model.name, labels.get(choice, choice))
        elif reason == Reason.SESSION:
            return f"{accepted.model.name}: {WITHOUT_CHOICE[reason]}."
        elif decision is None or reason != decision.reason:
            return None
        else:
            sentence = explain_choice(
                decision.arm,
                decision.reason,
                decision.policy,
                decision.probabilities,
                decision.cost_usd,
                self.plan.planner.labels,
            ).sentence
        if accepted.arm in self.plan.planner.router.unmeasured:
            sentence = f"{sentence} {UNMEASURED_NOTE}"
        return note_unfamiliar(sentence, reason) if self.plan.is_unfamiliar else sentence
