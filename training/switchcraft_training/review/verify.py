"""The critic: asks a model about every row, and saves its opinions."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO, Final

import openai
import orjson
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam
from pydantic import BaseModel, ConfigDict, ValidationError
from tqdm import tqdm

from router_service.apis.conversation import Json
from router_service.core.errors import DataError, SwitchcraftError, UpstreamError
from router_service.policies.costs import Price
from switchcraft_training.datasets.corrections import (
    CATEGORIES,
    Change,
    CorrectionKind,
    ErrorCategory,
    first_problem,
    last_utterance,
    row_sha256,
    truth_of,
)
from switchcraft_training.records import Judged
from switchcraft_training.review.truths import are_equivalent, find_problem, truth_from_json

_LOG = logging.getLogger(__name__)

_PERMANENT_ERRORS: Final = (
    openai.AuthenticationError,
    openai.PermissionDeniedError,
    openai.NotFoundError,
)
"""Errors that every further request would get too."""

DEFAULT_CATEGORY: Final = {
    CorrectionKind.TRUTH: ErrorCategory.INCORRECT_VALUE,
    CorrectionKind.INPUT: ErrorCategory.AMBIGUOUS_TIME,
}
"""The most frequent category of each kind in the paper's review."""

_CATEGORY_NAMES: Final = {kind: ", ".join(CATEGORIES[kind]) for kind in CorrectionKind}

# The wording of the prompt affects the critic's answers (the paper's appendix on ConFETTI has
# the methodology), so it is not changed for style.
INSTRUCTIONS: Final = f"""\
You verify the ground truth of a benchmark of tool calls. You are given one entry: the whole \
conversation, the tools that are offered, and the calls that the benchmark expects next.

Decide whether the expected calls are the right next calls. Read the conversation to its end, the \
results of earlier calls among it, and hold every value against what was said and against the \
tool's schema. Accept what a careful person could defend; do not flag matters of taste.

How expected calls are written: a list of {{"name", "arguments", "optional", "after"}}. Each \
parameter in "arguments" has a list of accepted values, any one of which is right. "optional" \
names the parameters that may be left out. "after" holds the indices of calls that must come \
first. An object {{"$one_of": [...], "$optional": true or false}} inside a value lists accepted \
values too. An empty list means that no tool should be called. "any_call": true means that \
whichever tool is called is right.

Answer with one JSON object and nothing else:
{{"verdict": "right" | "wrong_truth" | "ambiguous_input",
 "category": string or null,
 "explanation": string,
 "expected": list of expected calls or null,
 "utterance": string or null}}

- "right": the expected calls are right and can be known from the conversation. Leave the other \
fields null, and the explanation short.
- "wrong_truth": they are not. Give the whole corrected list in "expected", written as above and \
changed no more than is needed. Category, the most impactful that applies: \
{_CATEGORY_NAMES[CorrectionKind.TRUTH]}.
- "ambiguous_input": they are plausible, but the conversation does not say enough to know them, as \
where a date has no year. Give in "utterance" the last user message with the fewest words added \
that settle it; the expected calls stay. Category: {_CATEGORY_NAMES[CorrectionKind.INPUT]}.

Explain in one to three sentences, to a person who has the entry before them, and name the value \
and the place in the conversation that decide it."""


class VerifierOpinion(BaseModel):
    """The critic's opinion on a row: whether the row is flagged, and how to correct it.

    A correct row has no `change`. If the suggested correction cannot be used, `change` is empty
    too, and `problem` has the reason.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    is_flagged: bool
    kind: CorrectionKind = CorrectionKind.TRUTH
    category: ErrorCategory = DEFAULT_CATEGORY[CorrectionKind.TRUTH]
    explanation: str = ""
    change: Change | None = None
    problem: str | None = None


class Finding(BaseModel):
    """The opinion on a row, with its cost, which is None without a price."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    row_sha256: str
    opinion: VerifierOpinion
    model: str
    input_tokens: int
    output_tokens: int
    cost_usd: float | None = None
    at: str


@dataclass(frozen=True, slots=True)
class Critic:
    """The critic model at an OpenAI-compatible endpoint; without a price, costs are unknown."""

    model: str
    base_url: str
    api_key: str
    price: Price | None = None
    concurrency: int = 8
    timeout_s: float = 300.0


@dataclass(slots=True)
class VerificationCounts:
    """The numbers of rows that were verified, flagged and failed, and the cost in USD."""

    verified: int = 0
    flagged: int = 0
    failed: int = 0
    cost_usd: float = 0.0


def read_findings(path: Path) -> list[Finding]:
    """Return the saved findings; empty if there is no file.

    A last line without a line break is ignored, because its writer was killed while writing it.
    Raises DataError if any other line is invalid.
    """
    if not path.exists():
        return []
    findings = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        try:
            findings.append(Finding.model_validate_json(line))
        except ValidationError as exc:
            raise DataError(path, number, first_problem(exc)) from exc
    return findings


def open_findings(path: Path) -> BinaryIO:
    """Open a file to append findings to, without an incomplete last line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
    return path.open("ab")


async def verify(rows: Sequence[Judged], file: BinaryIO, critic: Critic) -> VerificationCounts:
    """Ask the critic model whether rows are correct, and write each finding at once.

    Requests that fail after all retries are counted, and the next run repeats them. Raises
    UpstreamError if every request would fail, for example if the key is wrong.
    """
    counts = VerificationCounts()
    remaining = iter(rows)

    async def work(client: openai.AsyncOpenAI, bar: tqdm[None]) -> None:
        for judged in remaining:  # all workers share this iterator
            try:
                finding = await _ask(client, judged, critic)
            except openai.OpenAIError as exc:
                counts.failed += 1
                _LOG.warning("%s was not verified: %s", judged.example.id, exc)
            else:
                file.write(finding.model_dump_json(exclude_none=True).encode() + b"\n")
                file.flush()
                counts.verified += 1
                counts.flagged += finding.opinion.is_flagged
                counts.cost_usd += finding.cost_usd or 0.0
            bar.set_postfix(flagged=counts.flagged, usd=f"{counts.cost_usd:.4f}", refresh=False)
            bar.update()

    async with openai.AsyncOpenAI(
        api_key=critic.api_key, base_url=critic.base_url, timeout=critic.timeout_s
    ) as client:
        with tqdm(desc="verifying", unit="row", total=len(rows)) as bar:
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(critic.concurrency):
                        group.create_task(work(client, bar))
            except* SwitchcraftError as exc:
                raise exc.exceptions[0] from exc
    return counts


async def _ask(client: openai.AsyncOpenAI, judged: Judged, critic: Critic) -> Finding:
    """Return the critic's finding on one row.

    Raises OpenAIError if the request fails, or UpstreamError if every request would fail.
    """
    request = judged.example.request
    entry: Json = {
        "conversation": request["messages"],
        "tools": request["tools"],
        "expected": [call.model_dump(mode="json") for call in truth_of(judged)],
        "any_call": judged.expected.any_call,
    }
    messages: list[ChatCompletionMessageParam] = [
        {"role": "system", "content": INSTRUCTIONS},
        {"role": "user", "content": orjson.dumps(entry).decode()},
    ]
    try:
        answer: object = await client.chat.completions.create(
            model=critic.model,
            messages=messages,
            response_format={"type": "json_object"},
        )
    except _PERMANENT_ERRORS as exc:
        raise UpstreamError(critic.model, f"refused the request: {exc}") from exc
    # If the response is not JSON, for example a web page, the client returns it as a string.
    if not isinstance(answer, ChatCompletion):
        problem = "answered without a chat completion; is --base-url correct?"
        raise UpstreamError(critic.model, problem)
    text = answer.choices[0].message.content if answer.choices else None
    used = (answer.usage.prompt_tokens, answer.usage.completion_tokens) if answer.usage else (0, 0)
    return Finding(
        id=judged.example.id,
        row_sha256=row_sha256(judged),
        opinion=read_opinion(judged, text),
        model=critic.model,
        input_tokens=used[0],
        output_tokens=used[1],
        cost_usd=critic.price.cost_usd(*used, seconds=0) if critic.price else None,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


class _Verdict(StrEnum):
    RIGHT = "right"
    WRONG_TRUTH = "wrong_truth"
    AMBIGUOUS_INPUT = "ambiguous_input"


class _VerifierAnswer(BaseModel):
    """The critic's JSON object; the correction is validated separately."""

    verdict: _Verdict
    category: str | None = None
    explanation: str = ""
    expected: Json = None
    utterance: Json = None


def read_opinion(judged: Judged, text: str | None) -> VerifierOpinion:
    """Read a critic's answer; an answer that cannot be read or used flags the row."""
    raw = text or ""
    try:
        # Parse from the first to the last brace, because some models put JSON in a code block.
        answer = _VerifierAnswer.model_validate_json(raw[raw.find("{") : raw.rfind("}") + 1])
    except ValidationError as exc:
        reason = f"the critic's answer cannot be read: {first_problem(exc)}"
        return VerifierOpinion(is_flagged=True, explanation=raw.strip(), problem=reason)
    if answer.verdict is _Verdict.RIGHT:
        return VerifierOpinion(is_flagged=False, explanation=answer.explanation)
    is_truth = answer.verdict is _Verdict.WRONG_TRUTH
    kind = CorrectionKind.TRUTH if is_truth else CorrectionKind.INPUT
    category = next((c for c in CATEGORIES[kind] if c == answer.category), DEFAULT_CATEGORY[kind])
    change: Change | None = None
    problem: str | None = None
    try:
        change = _read_change(judged, answer, kind, category)
    except ValueError as exc:
        problem = f"the suggestion cannot be used: {exc}"
    return VerifierOpinion(
        is_flagged=change is not None or problem is not None,
        kind=kind,
        category=category,
        explanation=answer.explanation,
        change=change,
        problem=problem,
    )


def _read_change(
    judged: Judged, answer: _VerifierAnswer, kind: CorrectionKind, category: ErrorCategory
) -> Change | None:
    """Return the suggested change, or None if it changes nothing.

    Raises ValueError if the suggestion cannot be used.
    """
    if kind is CorrectionKind.INPUT:
        present, utterance = last_utterance(judged.example), answer.utterance
        if present is None:
            raise ValueError("the last user message is not plain text")
        if not isinstance(utterance, str) or not utterance.strip() or utterance == present:
            raise ValueError("the new last user message is missing, empty or unchanged")
        return Change(kind=kind, category=category, utterance=utterance)
    truth = truth_from_json(answer.expected)
    problem = find_problem(judged, truth)
    if problem is not None:
        raise ValueError(problem)
    if are_equivalent(judged, truth):
        return None
    return Change(kind=kind, category=category, expected=truth)
