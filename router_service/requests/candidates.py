"""Candidate answers: what upstreams answered to one request, and what that costs."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from router_service.apis.answers import NO_IDENTITY, AnswerIdentity, ParsedAnswer
from router_service.apis.usage import NO_USAGE, Usage
from router_service.checker.usability import AnswerTerms, is_better_than_error, why_unusable
from router_service.core.errors import Failure, UpstreamError
from router_service.settings import Model
from router_service.tracing import UNTRACED, Trace
from router_service.upstream.streams import StartedAnswer


@dataclass(slots=True)
class Attempt:
    """One request to one deployment, with its failure, or with None if it was answered."""

    model: str
    deployment_id: str
    failure: Failure | None = None
    is_cancelled: bool = field(default=False, compare=False)
    """Whether the gateway stopped waiting for the answer."""
    was_sent: bool = field(default=False, compare=False)
    """Whether the upstream may have got a part of the request, and may bill it."""
    status: int | None = field(default=None, compare=False)
    """The status of the upstream's answer; None before it."""
    lost_usd: float = field(default=0.0, compare=False)
    """Estimated cost of a prompt whose answer is not counted."""

    def mark_sent(self) -> None:
        """Record that the upstream may have got a part of the request."""
        self.was_sent, self.status = True, None

    @property
    def is_billed(self) -> bool:
        """Whether the upstream bills at least the prompt: it got it, and reported no error."""
        return self.was_sent and (self.status is None or self.status < 300)


@dataclass(slots=True)
class Candidate:
    """An answer to a request, while upstreams are asked for it and afterwards.

    A request that is not verified has one candidate, for which the plan's models are tried in turn,
    and one more after each answer that cannot be used. A verified request has one for each arm that
    is asked, besides the one that answers without verification if all arms fail.
    """

    model: Model
    """The model that answered or was tried last; initially the one that is tried first."""
    arm: str | None = None
    """The arm that is asked for an answer to verify; None for the answer without verification."""
    step: int = 0
    """Number of the step that asks the arm, from 1; 0 without verification."""
    started_s: float = field(default_factory=time.perf_counter)
    """When the first upstream was called."""
    attempts: list[Attempt] = field(default_factory=list)
    """Deployments that were tried, in order."""
    opened: StartedAnswer | None = None
    """The upstream's answer from its start until the request ends. If the answer is verified, its
    `body` is whole once `is_complete`."""
    unread_bytes: int = 0
    """Size of an answer that is too large to be parsed, as far as it has arrived."""
    is_complete: bool = False
    """Whether the answer arrived completely, and can be used."""
    error: UpstreamError | None = None
    """Why there is no complete answer that can be used, if an upstream is the reason. An answer
    that is neither complete nor failed was cancelled."""
    answer: ParsedAnswer | None = None
    """The parsed answer, if it arrived completely and is not too large."""
    usage: Usage | None = None
    answer_usd: float | None = None
    """Cost of the answer; None if it is unknown, or if no upstream got the request."""
    cost_usd: float | None = None
    """Cost of the answer and of the attempts before it; None as for `answer_usd`."""
    identity: AnswerIdentity = NO_IDENTITY
    """The id and the model that the upstream's answer names, if the request is traced."""
    first_byte_s: float | None = None
    """From the request to the upstream until the start of the answer."""
    seconds: float = 0.0
    """From the request to the upstream until the end of the answer."""
    p_correct: float | None = None
    """The verifier's last estimate, if there is one; 0 for an answer that cannot be used."""
    first_p_correct: float | None = None
    """The verifier's first estimate, before further arms were asked."""
    expected_gain: float | None = None
    """What asking the arm was expected to add to the probability of a correct answer; None for the
    first step, which always asks."""
    ungrounded: tuple[str, ...] = ()
    """Invented arguments of risky tools that no other candidate confirms."""
    trace: Trace = field(default=UNTRACED, repr=False)

    def fail_if_unusable(self, terms: AnswerTerms | None) -> None:
        """Raise UpstreamError if the answer has arrived, and no client can use it."""
        problem = None if terms is None else why_unusable(self.answer, terms)
        if problem is not None:
            self.p_correct = self.first_p_correct = 0.0
            self.attempts[-1].failure = Failure.UNUSABLE
            raise UpstreamError(self.model.name, problem, Failure.UNUSABLE)

    def is_better_than_error(self, terms: AnswerTerms | None) -> bool:
        """Return whether the answer is delivered if no model gives one that can be used."""
        return terms is not None and is_better_than_error(self.answer, terms)

    def begin(self, opened: StartedAnswer) -> None:
        """Note the start of the upstream's answer."""
        self.first_byte_s = time.perf_counter() - self.started_s
        self.opened, self.model = opened, opened.model
        if opened.reader is None and self.trace.trace_id is not None:
            self.identity = AnswerIdentity.of(opened.value)
        if opened.is_skimmed:
            self.unread_bytes = len(opened.body)

    @property
    def started(self) -> StartedAnswer:
        """The upstream's answer, which has started."""
        assert self.opened is not None  # noqa: S101 - for types; only used once it has
        return self.opened

    @property
    def was_asked(self) -> bool:
        """Whether an upstream may have got a part of the request, and may bill it."""
        for attempt in self.attempts:  # noqa: SIM110 - `any` takes several times as long
            if attempt.was_sent:
                return True
        return False

    @property
    def failure(self) -> str | None:
        """Why there is no complete answer that can be used; None if there is one."""
        if self.is_complete:
            return None
        return "cancelled" if self.error is None else str(self.error.failure)


def answer_cost_usd(model: Model, usage: Usage | None, upstream_s: float) -> float | None:
    """Return an answer's cost at its model's price; None if the price or the usage is unknown."""
    price = model.price
    if price is None or (usage is None and price.has_token_prices):
        return None
    return price.cost_of(usage or NO_USAGE, upstream_s)
