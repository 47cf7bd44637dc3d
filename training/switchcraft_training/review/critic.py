"""The critic: asks a model about every row, and saves its opinions with their suggestions."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

import openai
import orjson
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam
from pydantic import BaseModel, ValidationError
from tqdm import tqdm

from router_service.apis.conversation import Json
from router_service.core.errors import SwitchcraftError, UpstreamError
from router_service.policies.costs import Price
from switchcraft_training.datasets.corrections import (
    PLAIN_TEXT,
    last_utterance,
    row_sha256,
    with_truth,
)
from switchcraft_training.datasets.rows import ROW_ERRORS, encode_row
from switchcraft_training.records import Judged

_LOG = logging.getLogger(__name__)

_PERMANENT_ERRORS: Final = (
    openai.AuthenticationError,
    openai.PermissionDeniedError,
    openai.NotFoundError,
)
"""Errors that every further request would get too."""

# The wording of the prompt affects the critic's answers (the paper's appendix on ConFETTI has
# the methodology), so it is not changed for style.
INSTRUCTIONS: Final = """\
You verify the ground truth of a benchmark of tool calls. You are given one entry: the whole \
conversation, the tools that are offered, and the calls that the benchmark expects next.

Decide whether the expected calls are the right next calls. Read the conversation to its end, the \
results of earlier calls among it, and hold every value against what was said and against the \
tool's schema. Accept what a careful person could defend; do not flag matters of taste.

How expected calls are written: a list of {"name", "arguments", "optional", "after"}. Each \
parameter in "arguments" has a list of accepted values, any one of which is right. "optional" \
names the parameters that may be left out. "after" holds the indices of calls that must come \
first. An object {"$one_of": [...], "$optional": true or false} inside a value lists accepted \
values too. An empty list means that no tool should be called. "any_call": true means that \
whichever tool is called is right.

Answer with one JSON object and nothing else:
{"verdict": "right" | "wrong_truth" | "ambiguous_input",
 "explanation": string,
 "expected": list of expected calls or null,
 "utterance": string or null}

- "right": the expected calls are right and can be known from the conversation. Leave the other \
fields null, and the explanation short.
- "wrong_truth": they are not. Give the whole corrected list in "expected", written as above and \
changed no more than is needed.
- "ambiguous_input": they are plausible, but the conversation does not say enough to know them, as \
where a date has no year. Give in "utterance" the last user message with the fewest words added \
that settle it; the expected calls stay.

Explain in one to three sentences, to a person who has the entry before them, and name the value \
and the place in the conversation that decide it."""


class Opinion(BaseModel):
    """The critic's JSON object; the suggestion is validated separately."""

    verdict: Literal["right", "wrong_truth", "ambiguous_input"]
    explanation: str = ""
    expected: Json = None
    utterance: Json = None


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
class ReviewCounts:
    """The numbers of rows that were reviewed, flagged and failed, and the cost in USD."""

    reviewed: int = 0
    flagged: int = 0
    failed: int = 0
    cost_usd: float = 0.0


def open_review(path: Path) -> BinaryIO:
    """Open a review to append lines to, without an incomplete last line of a killed process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
    return path.open("ab")


async def review_rows(rows: Sequence[Judged], file: BinaryIO, critic: Critic) -> ReviewCounts:
    """Ask the critic model whether rows are correct, and write each opinion at once.

    Requests that fail after all retries are counted, and the next run repeats them. Raises
    UpstreamError if every request would fail, for example if the key is wrong.
    """
    counts = ReviewCounts()
    remaining = iter(rows)

    async def work(client: openai.AsyncOpenAI, bar: tqdm[None]) -> None:
        for judged in remaining:  # all workers share this iterator
            try:
                line = await _ask(client, judged, critic)
            except openai.OpenAIError as exc:
                counts.failed += 1
                _LOG.warning("%s was not reviewed: %s", judged.example.id, exc)
            else:
                file.write(orjson.dumps(line) + b"\n")
                file.flush()
                counts.reviewed += 1
                counts.flagged += line["is_flagged"]
                counts.cost_usd += line["cost_usd"] or 0.0
            bar.set_postfix(flagged=counts.flagged, usd=f"{counts.cost_usd:.4f}", refresh=False)
            bar.update()

    async with openai.AsyncOpenAI(
        api_key=critic.api_key, base_url=critic.base_url, timeout=critic.timeout_s
    ) as client:
        with tqdm(desc="reviewing", unit="row", total=len(rows)) as bar:
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(critic.concurrency):
                        group.create_task(work(client, bar))
            except* SwitchcraftError as exc:
                raise exc.exceptions[0] from exc
    return counts


async def _ask(client: openai.AsyncOpenAI, judged: Judged, critic: Critic) -> dict[str, Any]:
    """Return the line of one row: a correction to decide on, with the critic's reason.

    Raises OpenAIError if the request fails, or UpstreamError if every request would fail.
    """
    request = judged.example.request
    present = orjson.loads(encode_row(judged))
    entry: Json = {
        "conversation": request["messages"],
        "tools": request["tools"],
        "expected": present["expected"],
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
    return {
        "id": judged.example.id,
        "dataset": judged.example.dataset,
        "accept": False,
        **read_opinion(judged, text or ""),
        "present": present["expected"],
        "row_sha256": row_sha256(judged),
        "model": critic.model,
        "cost_usd": critic.price.cost_usd(*used, seconds=0) if critic.price else None,
    }


def read_opinion(judged: Judged, text: str) -> Mapping[str, Json]:
    """Read a critic's answer; an answer that cannot be read, or used, flags the row.

    `expected` or `utterance` has the suggestion, and `problem` the reason if it cannot be used.
    """
    try:
        # Parse from the first to the last brace, because some models put JSON in a code block.
        opinion = Opinion.model_validate_json(text[text.find("{") : text.rfind("}") + 1])
    except ValidationError as exc:
        problem = f"the critic's answer cannot be read: {exc.errors()[0]['msg']}"
        return {"is_flagged": True, "explanation": text.strip(), "problem": problem}
    if opinion.verdict == "right":
        return {"is_flagged": False, "explanation": opinion.explanation}
    flagged: dict[str, Json] = {"is_flagged": True, "explanation": opinion.explanation}
    try:
        if opinion.verdict == "wrong_truth":
            with_truth(judged, opinion.expected)
            return {**flagged, "expected": opinion.expected}
        present, utterance = last_utterance(judged.example), opinion.utterance
        if present is None:
            raise ValueError(PLAIN_TEXT)
        if not isinstance(utterance, str) or not utterance.strip() or utterance == present:
            raise ValueError("the new last user message is missing, empty or unchanged")
    except ROW_ERRORS as exc:
        return {**flagged, "problem": f"the suggestion cannot be used: {exc}"}
    return {**flagged, "utterance": utterance}
