"""The typed rows that pass between the stages of training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

Json = Any
"""A decoded JSON value."""


@dataclass(frozen=True, slots=True)
class Example:
    """A query as the Chat Completions request that a client would send, without a model.

    `request` has `messages`, whose last is the turn to answer, and `tools`. `category` is what
    splits are stratified by; `conversation` names the conversation whose turns must not be parted.
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
        """The names of the tools offered, in order."""
        return tuple(tool["function"]["name"] for tool in self.request["tools"])


@dataclass(frozen=True, slots=True)
class OneOf:
    """Accepted values inside an expected object; `is_optional`: the key may be left out."""

    values: tuple[Json, ...]
    is_optional: bool = False


@dataclass(frozen=True, slots=True)
class ExpectedCall:
    """A call that should be made: accepted values by parameter, and what may be left out.

    `after` holds the indices of expected calls that must come before this one, because it reads
    what they return or change; calls are otherwise in any order.
    """

    name: str
    arguments: Mapping[str, tuple[Json, ...]]
    optional: frozenset[str] = frozenset()
    after: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Expected:
    """The calls that a query asks for; none where no tool fits the query.

    `any_call`: whichever call is made is right, and none is wrong (BFCL's `live_relevance`).
    """

    calls: tuple[ExpectedCall, ...]
    any_call: bool = False


class Judged(NamedTuple):
    """An example with what is expected of an answer to it."""

    example: Example
    expected: Expected


@dataclass(frozen=True, slots=True)
class Call:
    """A call that a model made."""

    name: str
    arguments: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model answered: its calls, None where it made none that can be read.

    `problem` is the code of why (`checking/parsing.py` lists them). `attempt` counts
    the times that the model was asked the same query, from 0. `seconds` is how long it took.
    """

    example_id: str
    arm: str
    calls: tuple[Call, ...] | None
    problem: str | None
    input_tokens: int | None
    output_tokens: int | None
    attempt: int = 0
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of asking a model a query: whether it was right, and what it used.

    `correct` is between 0 and 1 where nobody judged, and there is only evidence. None is unknown.
    `attempt` counts as an answer's does.
    """

    example_id: str
    arm: str
    correct: float
    input_tokens: int | None
    output_tokens: int | None
    seconds: float | None
    attempt: int = 0
