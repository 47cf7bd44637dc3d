"""The record: all that is left of a request once it has ended.

Every sink takes its part of it: the metrics, the sums of usage, the list of recent requests, the
log, the decision store and the decision log. A record has no part of the request's content.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import NamedTuple

import orjson
from pydantic import BaseModel

from router_service.core.decision_record import (
    BudgetChange,
    CandidateRecord,
    DecisionRecord,
    VerificationStop,
    label_policy,
)
from router_service.core.resources import Stage
from router_service.core.values import request_value

CLIENT_LEFT = 499
"""Status in logs and metrics if the client disconnected; it is never sent."""


class Ending(StrEnum):
    """How an answer ended."""

    COMPLETE = "complete"
    """The answer, which may be an upstream's error, was relayed to its end."""
    FAILED = "failed"
    """No upstream gave a usable answer; the client got the gateway's own error."""
    BROKEN = "broken"
    """A stream broke after its first byte had been relayed."""
    CLIENT_LEFT = "client_left"
    """The client closed its connection before the end."""


class RequestOutcome(StrEnum):
    """How a request ended."""

    ANSWERED = "answered"
    FAILED = "failed"
    """A model was asked, and the answer is an error or incomplete."""
    REFUSED = "refused"
    """The gateway refused the request before it asked a model."""
    LEFT = "left"
    """The client left before the end of the answer."""


class RecordKind(StrEnum):
    """What the gateway did with a request."""

    PLANNED = "planned"
    """It chose a model, and the request has a decision."""
    PASSED = "passed"
    """It passed the request to an upstream without reading it."""
    REFUSED = "refused"
    """It refused the request before it chose a model."""
    SHED = "shed"
    """It refused the request before it gave it a slot."""
    OWN = "own"
    """It answered by itself, such as the web page's requests."""


class AttemptResult(NamedTuple):
    """How one request to one deployment ended."""

    model: str
    deployment_id: str
    result: str
    """`answered`, `cancelled`, or the kind of failure."""
    lost_usd: float
    """Estimated cost of a prompt whose answer is not counted."""


@request_value(frozen=True, slots=True)
class AnswerResult:
    """What is left of one answer that a model was asked for; see `CandidateRecord`."""

    model: str
    seconds: float
    arm: str | None = None
    """The arm that was asked for an answer to verify; None for an answer without verification."""
    step: int = 0
    is_accepted: bool = True
    p_correct: float | None = None
    first_p_correct: float | None = None
    expected_gain: float | None = None
    ungrounded: tuple[str, ...] = ()
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    """Both counts are known, or neither."""
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    is_estimated: bool = False
    """Whether the gateway estimated the tokens."""
    answer_usd: float | None = None
    """Cost of the answer without the attempts before it."""
    cost_usd: float | None = None
    failure: str | None = None
    calls: int | None = None

    def candidate(self) -> CandidateRecord:
        """Return the candidate as the decision record has it."""
        return CandidateRecord(**dict(zip(_CANDIDATE, _values_of_candidate(self), strict=True)))


@request_value(frozen=True, slots=True)
class Expectation:
    """What one answer adds to the expected numbers of correct answers, and to their uncertainty."""

    correct: float
    """Probability that the answer is correct, corrected by the mean error of its policy."""
    baseline_correct: float
    """Probability that the baseline model would have answered correctly."""
    variance: float = 0.0
    """Variance of the difference in correctness; 0 if the answer is the baseline model's."""
    error: float = 0.0
    """Standard error of the difference between both probabilities. The errors of several requests
    add up, because such probabilities are wrong together."""


@request_value(frozen=True, slots=True)
class RoutedResult:
    """What the metrics say about a routed request besides the fields of its decision."""

    arm: str
    reason: str
    """The router's reason, even if a fallback answered."""
    probability: float
    """Predicted probability that the arm answers correctly."""
    size_bytes: int
    """Size of the request's body."""
    release_failed: bool | None
    """Whether the release that decided failed; None if that cannot be judged."""


@dataclass(slots=True)
class Record:
    """One request that has ended. `DecisionRecord` explains the fields that both have."""

    kind: RecordKind
    id: str
    request_id: str
    """The client's id for the request, or ours."""
    path: str
    status: int
    ending: Ending
    created: float
    latency_s: float
    key: str | None = None
    team: str | None = None
    model: str | None = None
    """The model that answered, or was tried last; None if the gateway chose none."""
    method: str | None = None
    """Only of requests that no model API served."""
    error: str | None = None
    """Code of the gateway's error, or kind of the upstream's failure."""
    cause: str | None = None
    """The error, as the log explains it."""
    trace_id: str | None = None

    # Of planned requests.
    deployment: str | None = None
    attempts: int = 0
    arm: str | None = None
    release: str | None = None
    reason: str | None = None
    policy: str | None = None
    policy_name: str | None = None
    policy_kind: str | None = None
    """The policy as the metrics name it."""
    propensity: float | None = None
    probabilities: Mapping[str, float] | None = None
    expected_cost_usd: Mapping[str, float] | None = None
    packed_tokens: int | None = None
    stream: bool = False
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    calls: int | None = None
    usage_is_estimated: bool | None = None
    actual_cost_usd: float | None = None
    first_byte_s: float | None = None
    unverified: str | None = None
    previous_arm: str | None = None
    conversation_id: str | None = None
    risk: str | None = None
    familiarity: float | None = None
    stop: VerificationStop | None = None
    budget: BudgetChange | None = None
    answers: tuple[AnswerResult, ...] = ()
    """All answers that models were asked for, in this order."""
    tries: tuple[AttemptResult, ...] = ()
    """All requests to deployments."""
    stages: Sequence[Stage] = ()
    decision_s: float = 0.0
    """Duration of the stages without the body's."""
    is_late: bool = False
    """Whether the decision took longer than the latency budget."""
    why: str | None = None
    """Why the model answered, in one sentence; None if the reason says everything."""
    fallback_from: str | None = None
    """The model that should have answered, if another one did."""
    is_unfamiliar: bool = False
    track: str | None = None
    """The release that planned the request."""
    router_failed: bool = False
    routed: RoutedResult | None = None
    """None if the request was not routed."""
    baseline_usd: float | None = None
    """Cost of the same tokens at the baseline model's price; None if it is not compared."""
    expectation: Expectation | None = None
    """None if the probabilities of a correct answer are unknown."""
    added_s: float | None = None
    """Time from the first complete candidate until one was accepted; None if none was."""

    @property
    def candidates(self) -> tuple[AnswerResult, ...] | None:
        """The candidates of verification; None if the answer was not verified."""
        return tuple([each for each in self.answers if each.arm is not None]) or None

    @property
    def caller(self) -> str | None:
        """The client's key."""
        return self.key

    @property
    def policy_label(self) -> str | None:
        """How the policy is shown: `economy (utility=0.001)`, or the rule without a name."""
        return None if self.policy is None else label_policy(self.policy, self.policy_name)

    @property
    def is_error(self) -> bool:
        """Whether the request failed; a client that left is no error."""
        is_incomplete = self.ending in {Ending.FAILED, Ending.BROKEN}
        return (self.status >= 400 and self.status != CLIENT_LEFT) or is_incomplete

    @property
    def outcome(self) -> RequestOutcome:
        """How the request ended, in one word."""
        if self.is_error:
            return RequestOutcome.REFUSED if self.model is None else RequestOutcome.FAILED
        has_left = self.status == CLIENT_LEFT or self.ending is Ending.CLIENT_LEFT
        return RequestOutcome.LEFT if has_left else RequestOutcome.ANSWERED

    def stored_json(self) -> bytes:
        """Return the decision record as JSON, without fields that have their default.

        That takes a tenth of the time of a `DecisionRecord`, which is made only to be read.
        """
        values = zip(_DECISION, _values_of(self), strict=True)
        found: dict[str, object] = {name: value for name, value in values if value is not None}
        candidates = self.candidates
        if candidates is not None:
            found["candidates"] = [each.candidate() for each in candidates]
        # A copy: orjson's own bytes keep the memory of its buffer, 5 KB more for each record.
        return bytes(memoryview(orjson.dumps(found, default=_plain)))

    def decision(self) -> DecisionRecord:
        """Return the decision record."""
        return DecisionRecord.model_validate_json(self.stored_json())


_DECISION = tuple(name for name in DecisionRecord.model_fields if name != "candidates")
_values_of = attrgetter(*_DECISION)
_CANDIDATE = tuple(name for name in CandidateRecord.model_fields if name != "content")
_values_of_candidate = attrgetter(*_CANDIDATE)


def _plain(value: object) -> object:
    """Return a value that JSON has no form for as one that it has."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_defaults=True)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, float):  # of NumPy
        return float(value)
    raise TypeError(type(value))
