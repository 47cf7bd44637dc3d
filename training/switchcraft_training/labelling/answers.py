"""What comes of a request: a reply, or a refusal with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from switchcraft_training.checking import ParsedAnswer, parse_native
from switchcraft_training.records import Json


class Key(NamedTuple):
    """Which question: a query, whom, and how many times the same was asked before."""

    example_id: str
    arm: str
    attempt: int


class Reply(BaseModel):
    """An answer: the message as it came, and what it took.

    `input_tokens` counts `cached_tokens`, and `output_tokens` counts `reasoning_tokens`; None is
    unknown. `latency_s` is that of the request that was answered, without retries and waits.
    `served_model` is what the endpoint says has answered.
    """

    model_config = ConfigDict(frozen=True)

    message: Mapping[str, Json]
    finish_reason: str | None
    served_model: str | None
    input_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None
    reasoning_tokens: int | None
    latency_s: float
    cost_usd: float | None = Field(None, description="At list price; None without token counts.")


class Remedy(StrEnum):
    """What to do after a refusal."""

    RETRY = "retry"
    GIVE_UP = "give up"
    """This request fails each time."""
    STOP_ARM = "stop the arm"
    """So does every other one of the arm."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request without an answer.

    `code` is one of `Code`'s; `may_be_paid` where the model may have answered all the same.
    """

    code: Code
    detail: str
    remedy: Remedy
    status: int | None = None
    may_be_paid: bool = False
    retry_after_s: float | None = None


class Code(StrEnum):
    """Why there is no answer."""

    WRONG_KEY = "wrong_key"
    NO_CREDIT = "no_credit"
    NOT_FOUND = "not_found"
    FORBIDDEN = "forbidden"
    CONTEXT_LENGTH = "context_length"
    BAD_REQUEST = "bad_request"
    RATE_LIMITED = "rate_limited"
    SERVER_ERROR = "server_error"
    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"
    """No connection came about: nothing was sent."""
    CONNECTION_LOST = "connection_lost"
    MALFORMED_BODY = "malformed_body"
    """A success that holds no chat completion."""
    WORKER_LOST = "worker_lost"
    """The process on another machine that was asking is gone."""


Outcome: TypeAlias = Reply | Refusal


def parse_message(message: Mapping[str, Json]) -> ParsedAnswer:
    """Read an answer's calls, from `tool_calls` alone: a client carries out no others.

    A call written as text does not count; its problem code is that of `checking/parsing.py`.
    """
    made = message.get("tool_calls")
    if not made:
        return parse_native(message.get("content") or message.get("refusal") or "")
    return parse_native([_named(call) for call in made])


def _named(call: Json) -> Json:
    """Return a call without its id; `{name: arguments}` would confuse a tool called `name`."""
    match call:
        case {"function": {"name": str(name), "arguments": arguments}}:
            return {"name": name, "arguments": arguments}
        case {"function": {"name": str(name)}}:
            return {"name": name, "arguments": "{}"}
    return None
