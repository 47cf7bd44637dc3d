"""The typed rows that pass between the stages of training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from router_service.apis.conversation import Json
from router_service.checker.toolbox import Call, ExpectedCall


@dataclass(frozen=True, slots=True)
class Example:
    """A query as the Chat Completions request that a client would send, without a model.

    `request` has `messages` and `tools`; the model answers the last message. Splits are stratified
    by `category`, and keep the turns of one `conversation` together.
    """

    id: str
    category: str
    request: Mapping[str, Json]
    dataset: str = ""
    conversation: str = ""

    @property
    def query(self) -> str:
        """The text of the last message."""
        return str(self.request["messages"][-1]["content"])

    @property
    def tool_names(self) -> tuple[str, ...]:
        """The names of the offered tools, in order."""
        return tuple(tool["function"]["name"] for tool in self.request["tools"])


@dataclass(frozen=True, slots=True)
class Expected:
    """The calls that a query requires; empty if no tool fits the query.

    With `any_call`, every call is correct, and an answer without a call is wrong (BFCL's
    `live_relevance`).
    """

    calls: tuple[ExpectedCall, ...]
    any_call: bool = False


class Judged(NamedTuple):
    """An example with its expected calls."""

    example: Example
    expected: Expected


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of a model: its calls, or None if it made no call that can be parsed.

    If there are no calls, `problem` is the code of the reason (listed in `checking/parsing.py`).
    `attempt` numbers repeated answers to the same query, from 0. `seconds` is the latency.
    `output_tokens` includes `reasoning_tokens`.
    """

    example_id: str
    arm: str
    calls: tuple[Call, ...] | None
    problem: str | None
    input_tokens: int | None
    output_tokens: int | None
    attempt: int = 0
    seconds: float | None = None
    reasoning_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """Correctness and usage of one answer; None means unknown.

    `correct` is 0 or 1 if the answer was judged, and a probability strictly between them if there
    is only evidence. `attempt` has the same meaning as in `Answer`.
    """

    example_id: str
    arm: str
    correct: float
    input_tokens: int | None
    output_tokens: int | None
    seconds: float | None
    attempt: int = 0
