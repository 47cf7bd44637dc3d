"""The lines of the decision log: what the gateway writes, and training reads.

A log is JSON lines in files `*.jsonl` of one folder; each line has a `type`. A decision is written
once, when its answer has ended; feedback and evidence name it by its id, and may come much later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter


class _Line(BaseModel):
    # Logs outlive versions, in both directions: unknown fields are passed over.
    model_config = ConfigDict(frozen=True, extra="ignore")

    created: float
    """When this was known, in Unix seconds."""


class Call(BaseModel):
    """A tool call with its arguments decoded."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    arguments: Mapping[str, Any]


class Content(BaseModel):
    """What was said, where the operator keeps it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    request: Mapping[str, Any]
    """`messages` and `tools` as in Chat Completions, whichever API the client used."""
    calls: tuple[Call, ...] | None = None
    """The answer's tool calls; None where they could not be read, or there was no answer."""
    text: str | None = None
    """The answer's text, if any."""


class LoggedDecision(_Line):
    """What was decided for one routed request, with which probability, and what became of it."""

    type: Literal["decision"] = "decision"
    id: str
    key: str | None = None
    """The name of the client's key."""
    conversation: str
    """Equal for the turns of one conversation: 32 hexadecimal digits of a hash of its opening."""
    request_sha256: str
    """Of the body as the client sent it."""
    artifact: str
    """Name of the artifact that decided."""
    artifact_sha256: str
    """Of its manifest."""
    release: str
    """Which published release it was: `stable` or `canary`."""
    policy: str
    arm: str
    """The arm that was chosen."""
    reason: str
    """Why: `threshold`, `drift`, `argmax`, `unread` or `explored`."""
    propensity: Annotated[float, Field(gt=0, le=1)]
    """The probability with which this arm was chosen; 1 without exploration."""
    probabilities: Mapping[str, float]
    """Of a correct answer, by arm; the arms are those that could serve the request."""
    expected_cost_usd: Mapping[str, float]
    features: tuple[float, ...] = ()
    """Structural counts, in the order of the artifact's manifest."""
    packed_tokens: int
    model: str
    """The pool's model that answered, or that was asked last."""
    is_fallback: bool = False
    """Whether that is another than the arm's: then nothing is known of the arm."""
    deployment: str | None = None
    attempts: int = 0
    stream: bool = False
    status: int
    ending: str
    """`complete`, `failed`, `broken` or `client_left`."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    usage_is_estimated: bool | None = None
    cost_usd: float | None = None
    """What the answer cost; None where that is unknown."""
    latency_s: float
    first_byte_s: float | None = None
    answer_sha256: str | None = None
    """Of the answer's calls and text, in canonical form."""
    calls: int | None = None
    """How many tool calls the answer has; None where that is unknown."""
    calls_fit: bool | None = None
    """Whether all of them fit their tools' schemas; None where there are none, or none was read."""
    content: Content | None = None


class LoggedFeedback(_Line):
    """What a client says of an answer; of several for one decision the last one counts."""

    type: Literal["feedback"] = "feedback"
    decision_id: str
    arm: str | None = None
    correct: bool | None = None
    """None where `expected` says it: then the checker judges."""
    expected: tuple[Call, ...] | None = None
    """The calls that would have been right; none at all is an answer without calls."""


class LoggedEvidence(_Line):
    """What a conversation's next turn says against a call; weak: it may have been right."""

    type: Literal["evidence"] = "evidence"
    decision_id: str
    arm: str
    kind: Literal["tool_error", "repeated_call"]
    """The tool's result was an error, or the same tool was called with other arguments."""
    tool: str
    """The tool's name, or a hash of it where content is not kept."""
    strength: Literal["weak"] = "weak"


Line = Annotated[LoggedDecision | LoggedFeedback | LoggedEvidence, Field(discriminator="type")]

read_line: TypeAdapter[Line] = TypeAdapter(Line)
"""Validates a line; raises pydantic.ValidationError."""
