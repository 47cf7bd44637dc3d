"""Asks a verifier model about every row, and keeps each opinion as soon as it is there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import openai
from openai.types.chat import ChatCompletion
from tqdm import tqdm

from router_service.core.cost import Price
from router_service.core.errors import SwitchcraftError, UpstreamError
from switchcraft_training.datasets.corrections import row_sha256
from switchcraft_training.records import Judged
from switchcraft_training.review.findings import Finding, judge
from switchcraft_training.review.journal import Journal
from switchcraft_training.review.prompt import messages_for

_LOG = logging.getLogger(__name__)

_HOPELESS: Final = (
    openai.AuthenticationError,
    openai.PermissionDeniedError,
    openai.NotFoundError,
)
"""What the next request would meet as well."""


@dataclass(frozen=True, slots=True)
class Verifier:
    """The model that is asked, at an OpenAI-compatible endpoint; no price: cost unknown."""

    model: str
    base_url: str
    api_key: str
    price: Price | None = None
    concurrency: int = 8
    timeout_s: float = 300.0


@dataclass(slots=True)
class Progress:
    """What a run has done: rows asked about, of those flagged and failed, and its cost in USD."""

    asked: int = 0
    flagged: int = 0
    failed: int = 0
    cost_usd: float = 0.0


def unverified(
    rows: Iterable[Judged], findings: Iterable[Finding], round_: int
) -> Iterator[Judged]:
    """Yield the rows that were not asked about, as they are now, in a round."""
    done = {(finding.id, finding.row_sha256) for finding in findings if finding.round == round_}
    return (row for row in rows if (row.example.id, row_sha256(row)) not in done)


async def verify(
    rows: Iterator[Judged], journal: Journal[Finding], verifier: Verifier, round_: int
) -> Progress:
    """Ask about rows and write each finding at once.

    A request that fails, after the client's own retries, is counted and asked again by the next
    run. Raises UpstreamError where every request would fail: a wrong key, or no such model.
    """
    progress = Progress()
    async with openai.AsyncOpenAI(
        api_key=verifier.api_key, base_url=verifier.base_url, timeout=verifier.timeout_s
    ) as client:
        with tqdm(desc="verifying", unit="row") as bar:
            asker = _Asker(client, verifier, journal, round_, progress, bar)
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(verifier.concurrency):
                        group.create_task(asker.work(rows))
            except* SwitchcraftError as exc:
                raise exc.exceptions[0] from exc
    return progress


@dataclass(frozen=True, slots=True)
class _Asker:
    client: openai.AsyncOpenAI
    verifier: Verifier
    journal: Journal[Finding]
    round_: int
    progress: Progress
    bar: Any

    async def work(self, rows: Iterator[Judged]) -> None:
        """Take rows off the one iterator that all workers share until it ends."""
        for judged in rows:
            await self._ask(judged)
            self.bar.set_postfix(
                flagged=self.progress.flagged, usd=f"{self.progress.cost_usd:.4f}", refresh=False
            )
            self.bar.update()

    async def _ask(self, judged: Judged) -> None:
        model = self.verifier.model
        try:
            answer = await self.client.chat.completions.create(
                model=model,
                messages=messages_for(judged),
                response_format={"type": "json_object"},
            )
        except _HOPELESS as exc:
            raise UpstreamError(model, f"refused the request: {exc}") from exc
        except openai.OpenAIError as exc:
            self.progress.failed += 1
            _LOG.warning("%s was not verified: %s", judged.example.id, exc)
        else:
            self._keep(_finding(judged, _read(answer, model), self.verifier, self.round_))

    def _keep(self, finding: Finding) -> None:
        self.journal.append(finding)
        self.progress.asked += 1
        self.progress.flagged += finding.opinion.is_flagged
        self.progress.cost_usd += finding.cost_usd or 0.0


def _read(answer: object, model: str) -> ChatCompletion:
    """Refuse what the client hands on unread: a web page, where the address is no API's."""
    if not isinstance(answer, ChatCompletion):
        raise UpstreamError(model, "answered with no chat completion; is --base-url right?")
    return answer


def _finding(judged: Judged, answer: ChatCompletion, verifier: Verifier, round_: int) -> Finding:
    text = answer.choices[0].message.content if answer.choices else None
    used = (answer.usage.prompt_tokens, answer.usage.completion_tokens) if answer.usage else (0, 0)
    return Finding(
        id=judged.example.id,
        row_sha256=row_sha256(judged),
        round=round_,
        opinion=judge(judged, text),
        model=verifier.model,
        input_tokens=used[0],
        output_tokens=used[1],
        cost_usd=verifier.price.cost_usd(*used, seconds=0) if verifier.price else None,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
