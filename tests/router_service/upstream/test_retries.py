"""Retries and fallbacks, the retry budget, and the set that remembers refusals."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import pytest

from router_service.apis.capabilities import Capabilities
from router_service.core.errors import Failure, UpstreamError
from router_service.requests.call import Call
from router_service.requests.candidates import Attempt, Candidate
from router_service.requests.parsing import Endpoint, ParsedRequest
from router_service.settings import BreakerSettings, Deployment, Model, RetrySettings, Timeouts
from router_service.upstream.breaker import CircuitBreakers
from router_service.upstream.client import UpstreamClient
from router_service.upstream.retries import (
    CLOCK_SLACK_S,
    RetryBudget,
    RetryingClient,
)
from router_service.upstream.streams import StartedAnswer
from tests.clock import Clock

pytestmark = pytest.mark.anyio


def test_requests_and_time_earn_retries() -> None:
    """Four requests at a share of 0.25 earn one retry, and so do two seconds at 0.5 a second."""
    clock = Clock()
    budget = RetryBudget(0.25, 0, clock)
    assert not budget.spend()
    for _ in range(4):
        budget.earn()
    assert [budget.spend() for _ in range(2)] == [True, False]
    slow = RetryBudget(0, 0.5, clock)
    assert [slow.spend() for _ in range(6)] == [True] * 5 + [False]
    clock.now_s += 2
    assert [slow.spend() for _ in range(2)] == [True, False]


def response(status: int, body: bytes = b"{}", *headers: str) -> bytes:
    """Return an HTTP answer with this body and these header lines."""
    lines = [f"HTTP/1.1 {status} X", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


OK = response(200, b'{"choices":[]}')
FAILED = response(500)
REFUSED = response(403)
CHAT_PATH = "/chat/completions"


@dataclass
class Upstream:
    """A server that gives its answers one after another, and repeats the last one."""

    answers: list[bytes]
    deployment: Deployment = field(
        default_factory=lambda: Deployment(upstream_model="m", base_url="")
    )
    bodies: list[bytes] = field(default_factory=list)
    received: asyncio.Event = field(default_factory=asyncio.Event)
    connections: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection. An empty answer breaks the connection."""
        self.connections += 1
        # A test may end, with its event loop, while connections are open.
        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(re.findall(rb"(?i)content-length: (\d+)", head)[0])
                self.bodies.append(await reader.readexactly(length))
                self.received.set()
                answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                if not answer:
                    break
                writer.write(answer)
        writer.close()


@asynccontextmanager
async def upstreams(*scripts: Sequence[bytes]) -> AsyncIterator[list[Upstream]]:
    """Run one upstream for each list of answers."""
    made = [Upstream(list(script)) for script in scripts]
    async with AsyncExitStack() as stack:
        for upstream in made:
            server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0)
            stack.callback(server.close)
            host, port = server.sockets[0].getsockname()
            upstream.deployment = Deployment(upstream_model="m", base_url=f"http://{host}:{port}")
        yield made


def model(name: str, *places: Upstream) -> Model:
    """Return a model with a deployment at each upstream, of which the first one is drawn."""
    deployments = [
        place.deployment.model_copy(update={"weight": 1.0 if number == 0 else 0.0})
        for number, place in enumerate(places)
    ]
    return Model(name=name, deployments=tuple(deployments))


PATIENT = RetrySettings(max_retries=4, backoff_s=1)
NEVER_OPEN = BreakerSettings(allowed_fails=1000)


class Gateway:
    """A retrying client whose waits take no time, and what it did."""

    def __init__(self, retries: RetrySettings = PATIENT) -> None:
        """Make the client. Its retry budget starts with ten seconds of the floor."""
        self.clock = Clock()
        self.waits: list[float] = []
        self.attempts: list[Attempt] = []
        self.breakers = CircuitBreakers(NEVER_OPEN, self.clock, lambda _name, _seconds: None)
        budget = RetryBudget(retries.budget_share, retries.budget_floor_per_s, self.clock)
        self.upstreams = UpstreamClient(max_connections=5)
        self.client = RetryingClient(self.upstreams, self.breakers, budget, retries)

    async def wait(self, seconds: float) -> None:
        """Note a wait, and let its time pass for the breakers."""
        self.waits.append(seconds)
        self.clock.now_s += seconds

    async def ask(
        self,
        *models: Model,
        path: str = CHAT_PATH,
        headers: Mapping[str, str] | None = None,
        deadline_s: float = math.inf,
    ) -> StartedAnswer:
        """Send a request, and return the answer that started."""
        self.call = call = Call("dec_1", "req_1", 0.0, headers=headers or {})
        call.request = ParsedRequest(Endpoint(path), b'{"model":"m"}')
        call.deadline_s = deadline_s
        candidate = Candidate(models[0], attempts=self.attempts)
        with patch("asyncio.sleep", self.wait):
            answer = await self.client.start(call, candidate, models)
        with answer:
            return answer

    def failures(self) -> list[tuple[str, Failure | None]]:
        """Return the model and the failure of each attempt."""
        return [(attempt.model, attempt.failure) for attempt in self.attempts]


async def failure_of(answer: Awaitable[StartedAnswer]) -> UpstreamError:
    """Return the error of a request that no upstream answers."""
    with pytest.raises(UpstreamError) as caught:
        await answer
    return caught.value


async def test_other_deployment_is_tried_without_a_wait() -> None:
    """Only a deployment that has failed this request is waited for."""
    async with upstreams([FAILED], [FAILED]) as places:
        gateway = Gateway(RetrySettings(max_retries=3))
        await failure_of(gateway.ask(model("a", *places)))
        assert [wait_s > 0 for wait_s in gateway.waits] == [False, True, True]


@pytest.mark.parametrize(
    ("seconds", "deadline_s", "waits"),
    [(3, math.inf, [3]), (6, math.inf, []), (3, 2, []), (3, 60, [3])],
)
async def test_retry_after_is_waited_for_within_limits(
    seconds: int, deadline_s: float, waits: list[float]
) -> None:
    """A requested wait beyond `max_backoff_s` or beyond the deadline ends the attempts."""
    limited = response(429, b"{}", f"retry-after: {seconds}")
    async with upstreams([limited, OK]) as (place,):
        gateway, pool = Gateway(), model("a", place)
        until_s = asyncio.get_running_loop().time() + deadline_s
        if waits:
            assert (await gateway.ask(pool, deadline_s=until_s)).status == 200
        else:
            error = await failure_of(gateway.ask(pool, deadline_s=until_s))
            assert error.retry_after_s == seconds
        assert gateway.waits == pytest.approx(waits, abs=2 * CLOCK_SLACK_S)
        assert all(wait_s > seconds for wait_s in gateway.waits)


NO_BUDGET = RetrySettings(budget_share=0, budget_floor_per_s=0)


@pytest.mark.parametrize(
    ("answer", "next_deployment", "next_model"),
    [
        (REFUSED, True, True),
        (response(404), False, True),
        (response(413), False, True),
        (FAILED, False, False),
        (response(429), False, False),
        (b"", False, False),
    ],
)
async def test_only_refusals_cost_no_retry_budget(
    answer: bytes, next_deployment: bool, next_model: bool
) -> None:
    """With an empty budget, a request goes elsewhere only if it was refused unread."""
    async with upstreams([answer], [OK]) as places:
        gateway = Gateway(NO_BUDGET)
        with suppress(UpstreamError):
            await gateway.ask(model("a", *places))
        assert len(places[1].bodies) == next_deployment
    async with upstreams([answer], [OK]) as (first, second):
        gateway = Gateway(NO_BUDGET)
        with suppress(UpstreamError):
            await gateway.ask(model("a", first), model("b", second))
        assert len(second.bodies) == next_model


TOO_LONG_ERRORS = [
    {"error": {"code": "context_length_exceeded", "message": "Too long."}},
    {"error": {"code": None, "message": "Your input exceeds the context window of this model."}},
    {"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long"}},
    {"object": "error", "message": "This model's maximum context length is 8 tokens.", "code": 400},
    {"error": {"code": 400, "message": "The input token count (9) exceeds the maximum."}},
]
"""Errors of OpenAI's two APIs, Anthropic, vLLM and Gemini for a request that is too long."""


@pytest.mark.parametrize("error", TOO_LONG_ERRORS)
async def test_too_long_request_goes_to_a_model_with_a_larger_window(error: dict[str, Any]) -> None:
    """Models whose window is not larger are skipped, and one with an unknown window is tried."""
    too_long = response(400, json.dumps(error).encode())
    async with upstreams([too_long], [OK], [OK], [OK]) as (first, same, large, unknown):
        models = [
            model(name, place).model_copy(
                update={"capabilities": Capabilities(context_window_tokens=window_tokens)}
            )
            for name, place, window_tokens in (
                ("first", first, 8),
                ("same", same, 8),
                ("large", large, 9),
                ("unknown", unknown, None),
            )
        ]
        gateway = Gateway(NO_BUDGET)
        answer = await gateway.ask(*models)
        assert (answer.model.name, len(same.bodies)) == ("large", 0)
        assert gateway.failures() == [("first", Failure.TOO_LONG), ("large", None)]
        assert gateway.waits == []
        answer = await gateway.ask(models[0], models[1], models[3])
        assert answer.model.name == "unknown"
        failure = await failure_of(gateway.ask(models[0], models[1]))
        assert (failure.model, failure.failure) == ("first", Failure.TOO_LONG)


BEGINNING = b'data: {"choices":[{"index":0,"delta":{"role":"assistant"}}]}\n\n'
CONTENT = b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\n'


@pytest.mark.parametrize("hold_s", [0.05, Timeouts().hold_s])
async def test_beginning_without_content_is_held_for_a_while(
    hold_s: float,
) -> None:
    """Then the client gets it, and later what follows, or the error of an upstream that is silent.

    A silent upstream whose timeout is shorter than the hold is a failure before any output.
    """
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    proceed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head + BEGINNING)
        with suppress(ConnectionError, asyncio.CancelledError):
            await proceed.wait()
            writer.write(CONTENT + b"data: [DONE]\n\n")
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    place = Deployment(upstream_model="m", base_url=f"http://{host}:{port}")

    async def parts(idle_s: float, *, is_released: bool) -> list[bytes]:
        timeouts = Timeouts(idle_s=idle_s, hold_s=hold_s)
        deployment = place.model_copy(update={"timeouts": timeouts})
        chosen = Model(name="a", deployments=(deployment,))
        call = Call("dec_1", "req_1", 0.0)
        call.request = ParsedRequest(Endpoint(CHAT_PATH), b'{"model":"m"}')
        client = Gateway(RetrySettings(max_retries=0)).client
        with await client.start(call, Candidate(chosen), [chosen]) as answer:
            assert answer.reader is not None
            assert (answer.body, answer.reader.has_output) == (BEGINNING, False)
            if is_released:
                proceed.set()
            return [part async for part in answer.reader.events]

    with pytest.raises(UpstreamError) as early:
        await parts(hold_s / 10, is_released=False)
    with pytest.raises(UpstreamError) as late:
        await parts(hold_s * 1.2, is_released=False)
    assert {early.value.failure, late.value.failure} == {Failure.TIMEOUT}
    assert b"".join(await parts(60, is_released=True)).startswith(CONTENT)
    server.close()


async def test_one_request_probes_until_it_is_answered_or_cancelled() -> None:
    """During a probe no other request is sent; if its client disconnects, the next one probes."""
    part = b"HTTP/1.1 200 X\r\ncontent-length: 14\r\n\r\n{"
    async with upstreams([part, OK]) as (place,):
        gateway = Gateway()
        gateway.breakers.adopt({place.deployment.id: 30})
        gateway.clock.now_s += 31
        probe = asyncio.create_task(gateway.ask(model("a", place)))
        await place.received.wait()
        error = await failure_of(gateway.ask(model("a", place)))
        assert error.failure is Failure.COOLING_DOWN
        probe.cancel()
        with pytest.raises(asyncio.CancelledError):
            await probe
        (attempt,) = gateway.attempts
        assert (attempt.was_sent, attempt.is_cancelled) == (True, True)
        assert (await gateway.ask(model("a", place))).status == 200


async def test_first_failure_that_may_have_acted_is_raised() -> None:
    """With an idempotency key, the first failure is raised: it decides what the client may do."""
    settings = RetrySettings(idempotency_keys=True, max_retries=2)
    async with upstreams([response(502), response(429), response(503)], [OK]) as (first, other):
        gateway = Gateway(settings)
        error = await failure_of(
            gateway.ask(
                model("a", first),
                model("b", other),
                path="/batches",
                headers={"idempotency-key": "k"},
            )
        )
        assert error.problem == "answered with status 502"
        assert (len(first.bodies), len(other.bodies)) == (3, 0)
