"""Concurrent requests and summaries of their answers, for drills that must lose no request."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import httpx

from tests.bodies import BODY, CHAT


@dataclass(frozen=True)
class AnswerSummary:
    """Summary of one answer."""

    status: int
    decision_id: str
    model: str
    ends: int
    """How often the answer signals completion."""
    errors: int
    """How often it signals an error."""

    @property
    def is_good(self) -> bool:
        """Return whether exactly one complete answer arrived."""
        return (self.status, self.ends, self.errors) == (200, 1, 0)


def send(url: str, count: int, at_once: int = 20) -> list[AnswerSummary]:
    """Send `count` requests, every other one streamed; return their summaries in order."""

    async def send_all() -> list[AnswerSummary]:
        gate = asyncio.Semaphore(at_once)
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            return await asyncio.gather(*(_send(client, gate, i % 2 == 1) for i in range(count)))

    return asyncio.run(send_all())


async def _send(client: httpx.AsyncClient, gate: asyncio.Semaphore, stream: bool) -> AnswerSummary:
    async with gate:
        response = await client.post(CHAT, json=BODY | {"stream": stream})
    return summarize(response, stream=stream)


def summarize(response: httpx.Response, *, stream: bool) -> AnswerSummary:
    """Summarize one answer."""
    text = response.text
    is_events = stream and response.status_code == 200
    return AnswerSummary(
        status=response.status_code,
        decision_id=response.headers.get("x-switchcraft-decision-id", ""),
        model=response.headers.get("x-switchcraft-model", ""),
        ends=text.count("data: [DONE]") if is_events else text.count('"object":"chat.completion"'),
        errors=text.count('"error":{'),
    )


def check_one_answer_each(answers: Iterable[AnswerSummary]) -> None:
    """Assert that no two answers share a decision and that each answer ends exactly once."""
    answers = list(answers)
    ids = Counter(answer.decision_id for answer in answers)
    assert max(ids.values()) == 1
    assert all(answer.ends + answer.errors == 1 for answer in answers)


def ended_requests(url: str) -> int:
    """Return how many ended requests a gateway has counted."""
    lines = httpx.get(url + "/metrics").text.splitlines()
    name = "switchcraft_requests_total{"
    return sum(int(float(line.rsplit(" ", 1)[1])) for line in lines if line.startswith(name))
