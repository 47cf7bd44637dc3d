"""A sample of a decision log's requests, with the answers that the log has of each model."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import orjson
from pydantic import BaseModel, ConfigDict

from router_service.apis.conversation import Json
from router_service.core.decision_record import (
    AnswerContent,
    CandidateRecord,
    LoggedComparison,
    LoggedDecision,
)
from router_service.policies.costs import Price
from switchcraft_training.datasets.rows import read_lines, write_lines
from switchcraft_training.decisions.log import DecisionLog, read_log
from switchcraft_training.decisions.queries import (
    DecisionUse,
    group_by_query,
    judge_decision,
    logged_example,
)
from switchcraft_training.errors import DataError
from switchcraft_training.labelling.answers import Reply
from switchcraft_training.records import Example

SEED: Final = 0
"""Of the draw, so that the same log gives the same sample."""


class Member(NamedTuple):
    """A model of the configuration, with the artifact's arm that stands for it."""

    model: str
    arm: str
    price: Price


class TurnPosition(StrEnum):
    """Where in an agent's work a request is."""

    BEGIN = "after a user's message"
    LOOP = "after a tool's result"

    @classmethod
    def of(cls, messages: Sequence[Mapping[str, Json]]) -> TurnPosition:
        """Return the position of a request with these messages."""
        return cls.LOOP if messages and messages[-1].get("role") == "tool" else cls.BEGIN


class SampledRequest(BaseModel):
    """A request of the log, what it was answered, and what is known of that answer."""

    model_config = ConfigDict(frozen=True)

    id: str
    session: str
    request: Mapping[str, Json]
    """`messages` and `tools`."""
    delivered: AnswerContent
    verdict: float | None
    """1 if the client said that the delivered answer is right, 0 if wrong; None if unknown."""
    is_contradicted: bool
    """Whether weak evidence speaks against the delivered answer."""
    recorded: Mapping[str, Reply]
    """The answers that the log has, by model."""

    @property
    def position(self) -> TurnPosition:
        """Where in an agent's work the request is."""
        return TurnPosition.of(self.request["messages"])

    @property
    def example(self) -> Example:
        """The request as a query of a labelling run."""
        return Example(self.id, "traffic", self.request, "learning", self.session)


def draw_sample(path: Path, count: int) -> list[SampledRequest]:
    """Draw requests from a decision log, spread over sessions and positions.

    Sessions take turns, so that long ones do not dominate, and so do the positions within a
    session. Equal requests count once. Raises DataError if the log has no usable request.
    """
    log, uses = read_log(path), Counter[DecisionUse]()
    rows: defaultdict[str, dict[TurnPosition, list[int]]] = defaultdict(dict)
    for group in group_by_query(log, uses):
        row = int(group[0])
        decision = log.decisions[row]
        example = logged_example(decision)
        if not example.tool_names:
            continue
        position = TurnPosition.of(example.request["messages"])
        rows[decision.conversation].setdefault(position, []).append(row)
    if not rows:
        reasons = ", ".join(f"{n:,} {use}" for use, n in sorted(uses.items())) or "none has tools"
        problem = (
            f"has no request to learn from ({reasons}). Set decision_log.content: true, and route"
            " requests with tools"
        )
        raise DataError(path, None, problem)
    chosen = np.sort(_take_turns(rows, count)).tolist()
    return [_describe(log, log.decisions[row]) for row in chosen]


def _take_turns(rows: Mapping[str, Mapping[TurnPosition, list[int]]], count: int) -> list[int]:
    """Return rows of sessions in turn, and of the positions of a session in turn."""
    rng = random.Random(SEED)  # noqa: S311 - not a secret
    queues: list[list[int]] = []
    for by_position in rows.values():
        shuffled = [rng.sample(each, len(each)) for each in by_position.values()]
        rounds = max(map(len, shuffled))
        queues.append([each[n] for n in range(rounds) for each in shuffled if n < len(each)])
    rng.shuffle(queues)
    found: list[int] = []
    for turn in range(max(map(len, queues))):
        for queue in queues:
            if turn < len(queue) and len(found) < count:
                found.append(queue[turn])
    return found


def _describe(log: DecisionLog, decision: LoggedDecision) -> SampledRequest:
    content = decision.content
    assert content is not None  # noqa: S101 - for types; `group_by_query` has checked it
    verdict = judge_decision(log, decision)
    example = logged_example(decision)
    return SampledRequest(
        id=decision.id,
        session=decision.conversation,
        request=example.request,
        delivered=AnswerContent(calls=content.calls, text=content.text),
        verdict=None if np.isnan(verdict) else verdict,
        is_contradicted=decision.id in log.evidence,
        recorded=_recorded(decision, log.comparisons[decision.id]),
    )


def _recorded(
    decision: LoggedDecision, comparisons: Sequence[LoggedComparison]
) -> dict[str, Reply]:
    """Return the answers to a decision's request that the log has, by model."""
    found: dict[str, Reply] = {}
    sources: list[LoggedComparison | CandidateRecord] = [*comparisons, *(decision.candidates or ())]
    for source in sources:
        content = source.content
        if content is not None and (content.calls is not None or content.text):
            found[source.model] = _reply(
                content, source.prompt_tokens, source.completion_tokens, source.seconds
            )
    content = decision.content
    if not decision.candidates and content is not None:
        found[decision.model] = _reply(
            content, decision.prompt_tokens, decision.completion_tokens, decision.latency_s
        )
    return found


def _reply(
    content: AnswerContent, prompt: int | None, completion: int | None, seconds: float
) -> Reply:
    calls = [
        {
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": call.name, "arguments": orjson.dumps(call.arguments).decode()},
        }
        for number, call in enumerate(content.calls or ())
    ]
    message: dict[str, Json] = {"role": "assistant", "content": content.text}
    if calls:
        message["tool_calls"] = calls
    return Reply(
        message=message,
        finish_reason=None,
        served_model=None,
        input_tokens=prompt,
        output_tokens=completion,
        cached_tokens=None,
        reasoning_tokens=None,
        latency_s=seconds,
        cost_usd=0.0,  # paid before, so it counts towards no budget
    )


def write_sample(requests: Iterable[SampledRequest], path: Path) -> None:
    """Write a sample to a file, from which an interrupted run goes on."""
    write_lines((each.model_dump_json().encode() for each in requests), path)


def read_sample(path: Path) -> list[SampledRequest]:
    """Read a sample; raises DataError."""
    return list(read_lines(path, SampledRequest.model_validate))
