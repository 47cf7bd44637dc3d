"""Decision records: one schema for the store, the API, the web page and the decision log.

The log is a folder of files `*.jsonl`; each line has a `type`. A decision is written once, when its
answer has ended. Feedback and evidence name the decision by its id, and may follow much later.
Training reads the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal, Protocol

from pydantic import AliasChoices, Field, TypeAdapter

from router_service.core.values import Strict, Tolerant


def label_policy(rule: str, name: str | None) -> str:
    """Return how a policy is shown: `economy (utility=0.001)`, or the rule of a policy unnamed."""
    return rule if name is None else f"{name} ({rule})"


class StoredRecord(Tolerant):
    """A value that a store keeps under an id for a limited time."""

    kind: ClassVar[str]
    """Name of this kind of record in the store's keys and in error messages."""
    max_mean_bytes: ClassVar[int] = 1024
    """Largest mean size of these records in memory. They have names, which clients may choose."""

    id: str

    @property
    def caller(self) -> str | None:
        """Name of the API key that the record belongs to, if any; keys share a store fairly."""
        return None

    def stored_json(self) -> bytes:
        """Return the record as JSON, without fields that have their default."""
        return self.model_dump_json(exclude_defaults=True).encode()


class Storable(Protocol):
    """A value that a store keeps, and from which it makes a record when the value is read."""

    @property
    def id(self) -> str:
        """The id under which it is kept."""

    @property
    def caller(self) -> str | None:
        """Name of the API key that it belongs to, if any."""

    def stored_json(self) -> bytes:
        """Return the record as JSON."""


class LoggedCall(Strict):
    """A tool call with its arguments decoded."""

    name: str
    arguments: Mapping[str, Any]


class AnswerContent(Tolerant):
    """The content of an answer."""

    calls: tuple[LoggedCall, ...] | None = None
    """The answer's tool calls; None if they could not be read, or if there was no answer."""
    text: str | None = None
    """The answer's text, if any."""


class CandidateRecord(Tolerant):
    """One candidate answer of a verified request, and its outcome."""

    arm: str
    model: str
    step: int
    """Number of the step that asked the arm, from 1; arms of one step are asked in parallel."""
    is_accepted: bool
    p_correct: float | None = None
    """The verifier's last estimate; None if there was no answer to judge."""
    first_p_correct: float | None = None
    """The verifier's estimate when the answer arrived, before further arms were asked."""
    expected_gain: float | None = None
    """Expected increase of the probability of a correct answer when the arm was asked; None for the
    arm that is asked first."""
    ungrounded: tuple[str, ...] = ()
    """Arguments of risky tools, such as `delete_file.path`, whose values nobody said and no other
    candidate gave."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost_usd: float | None = None
    """Cost at list price; None if the tokens or the price are unknown."""
    seconds: float
    """From the request to the upstream until the end of the answer."""
    failure: str | None = None
    """Why there is no answer: a kind of failure as in the metric `upstream_attempts`, or
    `cancelled` if the gateway no longer waited for it."""
    calls: int | None = None
    """Number of tool calls in the answer; None if unknown."""
    content: AnswerContent | None = None
    """Only in the log, and only if the operator has enabled logging of content."""


class StopReason(StrEnum):
    """Why no further arm was asked for a candidate answer."""

    NOT_WORTH = "not_worth"
    """No arm was expected to gain as much as it costs."""
    SURE = "sure"
    """A candidate is surely correct."""
    NO_MODEL_LEFT = "no_model_left"
    """All arms that may serve the request were tried."""
    MAX_CANDIDATES = "max_candidates"
    MAX_COST = "max_cost_usd"
    MAX_ADDED_LATENCY = "max_added_latency_s"
    """A limit of that name."""
    DEADLINE = "deadline"
    """The request's deadline, or the longest time for its models."""
    SHUTDOWN = "shutdown"


class VerificationStop(Tolerant):
    """Why the verification stopped, and what asking the best remaining arm would have meant.

    Without such an arm, and if its gain could not be estimated, the other fields are None.
    """

    reason: StopReason
    arm: str | None = None
    """The arm that was the best one to ask."""
    expected_gain: float | None = None
    """Expected increase of the probability of a correct answer if the arm had been asked."""
    expected_cost_usd: float | None = None


class BudgetChange(Tolerant):
    """How a budget that runs out has changed a request's policy.

    Accuracies and costs are those of measured queries; None if the policy was not measured.
    """

    subject: str
    """The budget, as `key:NAME` or `team:NAME`."""
    share_left: float
    """Share of the budget that was left."""
    until: int | None
    """When the budget's period ends, in Unix seconds; None if it never starts again."""
    asked: str
    """The policy that would have applied: a name such as `default`, a goal, or a rule."""
    asked_accuracy: float | None
    asked_cost_usd: float | None
    policy: str
    """The rule that applied instead."""
    expected_accuracy: float
    expected_cost_usd: float


class DecisionRecord(StoredRecord):
    """The decision for one request, and its outcome; never the request's content."""

    kind: ClassVar[str] = "decision"
    max_mean_bytes: ClassVar[int] = 4096

    created: float
    """When the answer ended, in Unix seconds."""
    model: str
    """The pool's model that answered, or that was tried last."""
    key: str | None = None
    """Name of the client's key; None if the gateway has no keys."""
    team: str | None = None
    """Name of the key's team; None if it has none."""

    deployment: str | None = None
    """Id of the deployment that answered, or that was tried last."""
    attempts: int = 0
    """Number of deployments tried, including the last one."""
    arm: str | None = None
    """The chosen arm of the artifact, or the arm that `model` is a candidate of; None if the router
    was not used."""
    release: str | None = None
    """The published release that decided, `stable` or `canary`; None if the router was not used."""
    reason: str
    """Why `model` answered."""
    policy: str | None = None
    """The rule that was applied, such as `drift=0.05`; None if the request was not routed."""
    policy_name: str | None = None
    """The name or goal by which the rule was asked for, such as `economy`; None without one."""
    propensity: Annotated[float, Field(gt=0, le=1)] | None = None
    """Probability with which the arm was chosen, 1 without exploration; None without the router,
    and if candidates were asked: whose answer is accepted then depends on the answers."""
    probabilities: Mapping[str, float] | None = None
    """Probability of a correct answer, by arm; only arms that could serve the request."""
    # In stored records and in the API, `cost_usd` means the expected costs; in the log, it means
    # the actual cost. When either is read, the name of the Python field is accepted too.
    expected_cost_usd: Mapping[str, float] | None = Field(
        default=None,
        validation_alias=AliasChoices("expected_cost_usd", "cost_usd"),
        serialization_alias="cost_usd",
    )
    """Expected cost of a request of average length by arm; inside a tool loop, of this request."""
    packed_tokens: int | None = None
    stream: bool
    status: int
    """HTTP status of the response, or 499 if the client had left."""
    ending: str
    """How the answer ended: `complete`, `failed`, `broken` or `client_left`."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    calls: int | None = None
    """Number of tool calls in the answer; None if unknown."""
    usage_is_estimated: bool | None = None
    """Whether the gateway estimated the tokens, because the upstream did not report them."""
    actual_cost_usd: float | None = None
    """Cost at list price; None if the tokens or the price are unknown."""
    latency_s: float
    """From the request's arrival to the end of its answer."""
    first_byte_s: float | None = None
    """From the request to the upstream until the first byte of its answer."""
    unverified: str | None = None
    """Why the answer was not verified, although the policy asked for verification."""
    previous_arm: str | None = None
    """The arm that served the conversation's last request; None if it is not known, or if
    conversations are not followed."""
    conversation_id: str | None = None
    """Equal for all requests of a conversation; None if no choice depends on the conversation."""
    risk: str | None = None
    """How much harm the offered tools can do: `read_only`, `writing` or `destructive`; None if the
    configuration does not ask."""
    familiarity: float | None = None
    """How much the request resembles the training data, from 0 to 1; None if the artifact cannot
    tell, or if the router was not used."""
    is_unfamiliar: bool = False
    """Whether the request is unlike the training data, so that its probabilities are uncertain."""
    candidates: tuple[CandidateRecord, ...] | None = None
    """All candidate answers, in the order in which they were asked; None if the policy is not
    `verified`. `actual_cost_usd` is the cost of all of them."""
    stop: VerificationStop | None = None
    """Why no further arm was asked; None if no answer was verified."""
    budget: BudgetChange | None = None
    """How a budget has changed the policy; None if it has not."""

    @property
    def caller(self) -> str | None:
        """The client's key."""
        return self.key

    @property
    def policy_label(self) -> str | None:
        """How the policy is shown: `economy (utility=0.001)`, or the rule without a name."""
        return None if self.policy is None else label_policy(self.policy, self.policy_name)


class Content(AnswerContent):
    """The request and the answer; logged only if the operator has enabled logging of content."""

    request: Mapping[str, Any]
    """`messages` and `tools` as in Chat Completions, whichever API the client used."""


class LoggedDecision(DecisionRecord):
    """The log's line for a routed request: its record, and fields that only the log has."""

    type: Literal["decision"] = "decision"
    # Every logged request was routed, so the next fields are always known.
    arm: str
    release: str
    reason: str
    """The router's reason, such as `threshold`, `drift`, `argmax`, `unread` or `explored`, or
    `verified` or `text` if candidates were asked."""
    policy: str
    probabilities: Mapping[str, float]
    expected_cost_usd: Mapping[str, float]
    packed_tokens: int
    stream: bool = False
    actual_cost_usd: float | None = Field(
        default=None,
        validation_alias=AliasChoices("actual_cost_usd", "cost_usd"),
        serialization_alias="cost_usd",
    )
    conversation: str
    """Equal for all turns of a conversation: 32 hexadecimal digits of a hash of its first system
    text and first user text."""
    request_sha256: str
    """Hash of the body as the client sent it."""
    artifact: str
    """Name of the artifact that decided."""
    artifact_sha256: str
    """Hash of the artifact's manifest."""
    features: tuple[float, ...] = ()
    """Structural features, in the order of the artifact's manifest."""
    is_fallback: bool = False
    """Whether another model than the arm's answered; the line then has no data about the arm."""
    cached_tokens: int | None = None
    answer_sha256: str | None = None
    """Hash of the answer's calls and text, in canonical form."""
    calls_fit: bool | None = None
    """Whether all calls match their tools' schemas; None without calls, or if any is unchecked."""
    content: Content | None = None


class _Line(Tolerant):
    created: float
    """When the line was written, in Unix seconds."""


class Verdict(StrEnum):
    """The kind of feedback on an answer."""

    CORRECT = "correct"
    WRONG = "wrong"
    EXPECTED = "expected"
    """The feedback has the expected calls; the checker judges the answer later."""


class LoggedFeedback(_Line):
    """A client's feedback on an answer. Of several for one decision, only the last one counts."""

    type: Literal["feedback"] = "feedback"
    decision_id: str
    arm: str | None = None
    correct: bool | None = None
    """None if `expected` is given: then the checker judges the answer."""
    expected: tuple[LoggedCall, ...] | None = None
    """The correct calls; an empty tuple means an answer without calls."""


class LoggedEvidence(_Line):
    """Weak evidence, from a conversation's next turn, that a call was wrong."""

    type: Literal["evidence"] = "evidence"
    decision_id: str
    arm: str
    kind: Literal["tool_error", "repeated_call"]
    """The tool's result was an error, or the same tool was called with other arguments."""
    tool: str
    """The tool's name, or a hash of it if content is not kept."""
    strength: Literal["weak"] = "weak"


class LoggedComparison(_Line):
    """Another model's answer to a logged request, which was asked for a comparison."""

    type: Literal["comparison"] = "comparison"
    decision_id: str
    model: str
    is_same: bool
    """Whether it makes the same calls as the delivered answer."""
    cost_usd: float
    seconds: float
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    content: AnswerContent | None = None


Line = Annotated[
    LoggedDecision | LoggedFeedback | LoggedEvidence | LoggedComparison,
    Field(discriminator="type"),
]

read_line: TypeAdapter[Line] = TypeAdapter(Line)
"""Validates a line; raises pydantic.ValidationError."""
