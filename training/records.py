"""The typed rows that pass between the stages of training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Json = Any
"""A decoded JSON value."""


@dataclass(frozen=True, slots=True)
class Example:
    """A query as the Chat Completions request that a client would send, without a model."""

    id: str
    category: str
    request: Mapping[str, Json]

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
    """A call that should be made: accepted values by parameter, and what may be left out."""

    name: str
    arguments: Mapping[str, tuple[Json, ...]]
    optional: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Expected:
    """The calls that a query asks for, in any order; none where no tool fits the query."""

    calls: tuple[ExpectedCall, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """A call that a model made."""

    name: str
    arguments: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model answered: its calls, none where it answered in words.

    `problem` says why there are none: `text`, `arguments_not_json`, `not_a_call`, `no_answer`.
    """

    example_id: str
    arm: str
    calls: tuple[Call, ...] | None
    problem: str | None
    input_tokens: int | None
    output_tokens: int | None
