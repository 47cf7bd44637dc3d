"""Answers of a labelling run: the result of each request, and the exported file of answers."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import orjson
from pydantic import BaseModel, ConfigDict, Field

from router_service.apis.conversation import Json
from router_service.checker.toolbox import Call
from switchcraft_training.checking import ParsedAnswer, parse_native
from switchcraft_training.datasets.rows import FILE_ERRORS, ROW_ERRORS, read_rows
from switchcraft_training.errors import DataError
from switchcraft_training.records import Answer, Judged

ANSWERS: Final = "answers.jsonl"
FAILURES: Final = "failures.jsonl"


class QuestionKey(NamedTuple):
    """Key of a question: a query, an arm, and how often the arm was asked this query before."""

    example_id: str
    arm: str
    attempt: int


class Reply(BaseModel):
    """An answer: the message as received, with its token counts and latency.

    `input_tokens` includes `cached_tokens`, and `output_tokens` includes `reasoning_tokens`; None
    means unknown. `latency_s` is the latency of the successful request, without retries and
    waits. `served_model` is the model that the endpoint reports.
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
    cost_usd: float | None = Field(
        None, description="Cost at list price; None if token counts are unknown."
    )


class Remedy(StrEnum):
    """The action to take after a failed request."""

    RETRY = "retry"
    GIVE_UP = "give up"
    """A retry of this request would fail too."""
    STOP_ARM = "stop the arm"
    """Every other request to this arm would fail too."""


class FailureCode(StrEnum):
    """The reason why there is no answer."""

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
    """The connection could not be opened, so nothing was sent."""
    CONNECTION_LOST = "connection_lost"
    MALFORMED_BODY = "malformed_body"
    """The status was 200, but the body is not a chat completion."""


@dataclass(frozen=True, slots=True)
class RequestFailure:
    """A request without an answer; `may_be_paid` says whether the provider may bill it anyway."""

    code: FailureCode
    detail: str
    remedy: Remedy
    status: int | None = None
    may_be_paid: bool = False
    retry_after_s: float | None = None


RequestResult: TypeAlias = Reply | RequestFailure


def parse_message(message: Mapping[str, Json]) -> ParsedAnswer:
    """Parse the calls in an answer's `tool_calls`; clients execute only these.

    A call that is written as text does not count. The result then has a problem code of the
    checker's parser.
    """
    tool_calls = message.get("tool_calls")
    if not tool_calls:
        return parse_native(message.get("content") or message.get("refusal") or "")
    calls: list[Json] = []
    for tool_call in tool_calls:
        # The parser also accepts the form `{name: arguments}`, but this form is ambiguous if a
        # tool's name is `name`.
        match tool_call:
            case {"function": {"name": str(name), "arguments": arguments}}:
                calls.append({"name": name, "arguments": arguments})
            case {"function": {"name": str(name)}}:
                calls.append({"name": name, "arguments": "{}"})
            case _:
                calls.append(None)
    return parse_native(calls)


def answer_to_json(key: QuestionKey, reply: Reply) -> Mapping[str, Json]:
    """Return an answer as a line of the exported file; each export parses the calls again."""
    parsed = parse_message(reply.message)
    return {**key._asdict(), "calls": parsed.calls, "problem": parsed.problem, **dict(reply)}


def answer_from_json(row: Mapping[str, Json]) -> Answer:
    """Return the answer in a line of the exported file."""
    calls = row["calls"]
    return Answer(
        example_id=row["example_id"],
        arm=row["arm"],
        calls=None if calls is None else tuple(Call(c["name"], c["arguments"]) for c in calls),
        problem=row["problem"],
        input_tokens=row["input_tokens"],
        output_tokens=row["output_tokens"],
        attempt=row["attempt"],
        seconds=row.get("latency_s"),
        reasoning_tokens=row.get("reasoning_tokens"),
    )


@dataclass(frozen=True)
class LabelledRun:
    """A labelling run as a source of training data: a file of rows, and a directory of answers.

    Every method raises DataError if a file is missing or a line cannot be read.
    """

    rows: Path
    folder: Path

    def arms(self) -> list[str]:
        """Return the arms with answers."""
        return sorted(self._positions)

    def judged(self) -> Iterator[Judged]:
        """Yield the judged examples of the file of rows."""
        return read_rows(self.rows)

    def answers(self, arm: str) -> Iterator[Answer]:
        """Yield all answers of an arm, including every attempt at each query."""
        positions = self._positions.get(arm, ())
        path = self.folder / ANSWERS
        try:
            with path.open("rb") as file:
                for position in positions:
                    file.seek(position)
                    yield answer_from_json(orjson.loads(file.readline()))
        except (*FILE_ERRORS, *ROW_ERRORS) as exc:
            raise DataError(path, None, f"has changed while it was read: {exc}") from exc

    @cached_property
    def _positions(self) -> Mapping[str, array[int]]:
        """The positions of each arm's lines in the file of answers, whose lines are all checked.

        Answers are read by arm and stored by query. Positions take 8 bytes each, and texts would
        take a kilobyte.
        """
        found: defaultdict[str, array[int]] = defaultdict(lambda: array("q"))
        path, position = self.folder / ANSWERS, 0
        try:
            with path.open("rb") as file:
                for number, line in enumerate(file, start=1):
                    if line.strip():
                        try:
                            found[answer_from_json(orjson.loads(line)).arm].append(position)
                        except ROW_ERRORS as exc:
                            problem = f"{type(exc).__name__}: {exc}"
                            raise DataError(path, number, problem) from exc
                    position += len(line)
        except FILE_ERRORS as exc:
            raise DataError(path, None, f"cannot be read: {exc}") from exc
        return found
