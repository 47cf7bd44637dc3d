"""Requests sent at the same time, and what became of each: for drills that must lose none."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import httpx

from tests.bodies import BODY, CHAT


@dataclass(frozen=True)
class Told:
    """What one request got."""

    status: int
    decision_id: str
    model: str
    ends: int
    """How often the answer said that it was complete."""
    errors: int
    """How often it said that it failed."""

    @property
    def is_good(self) -> bool:
        """Whether this is one whole answer, and nothing else."""
        return (self.status, self.ends, self.errors) == (200, 1, 0)


def send(url: str, count: int, at_once: int = 20) -> list[Told]:
    """Send so many requests, every other one streamed; return what each got, in their order."""

    async def send_all() -> list[Told]:
        gate = asyncio.Semaphore(at_once)
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            return await asyncio.gather(*(_send(client, gate, i % 2 == 1) for i in range(count)))

    return asyncio.run(send_all())


async def _send(client: httpx.AsyncClient, gate: asyncio.Semaphore, stream: bool) -> Told:
    async with gate:
        response = await client.post(CHAT, json=BODY | {"stream": stream})
    return told(response, stream=stream)


def told(response: httpx.Response, *, stream: bool) -> Told:
    """Read one answer."""
    text = response.text
    is_events = stream and response.status_code == 200
    return Told(
        status=response.status_code,
        decision_id=response.headers.get("x-switchcraft-decision-id", ""),
        model=response.headers.get("x-switchcraft-model", ""),
        ends=text.count("data: [DONE]") if is_events else text.count('"object":"chat.completion"'),
        errors=text.count('"error":{'),
    )


def check_none_twice(answers: Iterable[Told]) -> None:
    """Fail where two answers bear the same decision, or one says twice that it is complete."""
    answers = list(answers)
    ids = Counter(answer.decision_id for answer in answers)
    assert max(ids.values()) == 1
    assert all(answer.ends + answer.errors == 1 for answer in answers)


def counted(url: str) -> int:
    """Return how many requests a gateway says have ended."""
    lines = httpx.get(url + "/metrics").text.splitlines()
    name = "switchcraft_requests_total{"
    return sum(int(float(line.rsplit(" ", 1)[1])) for line in lines if line.startswith(name))
