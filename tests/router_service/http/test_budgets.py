"""Admission, reservation and settlement: a budget in dollars that uses only the hooks holds."""

from __future__ import annotations

import json
import math
import socket
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from pydantic import SecretStr

from router_service.access.hooks import ExpectedCost, Grant, IncomingRequest, Outcome
from router_service.core.errors import AdmissionError
from router_service.runtime.gateway import Gateway
from router_service.serving.app import create_app
from router_service.serving.server import DrainingServer, uvicorn_config
from router_service.settings import KeySettings, ServerSettings, Settings
from tests.bodies import ASK, BODY, CHAT
from tests.fakes import FakeRouter, VerifyingRouter
from tests.gateways import VERIFIED, sandbox_settings
from tests.serving import ONE_TRY, WAIT_S, Sandbox, served, wait_for

KEYS = {name: f"sk-switchcraft-{name:-<43}" for name in ("team-a", "team-b")}


@dataclass(slots=True)
class Reserved(Grant):
    """Admission with an amount that was reserved for the request."""

    usd: float = 0.0


class Budget:
    """A budget in dollars for each key, which reserves an estimate for each request."""

    def __init__(
        self, usd: float = 1e9, estimate_usd: float = 0.0, policy: str | None = None
    ) -> None:
        self.usd, self.estimate_usd, self.policy = usd, estimate_usd, policy
        self.spent_usd: defaultdict[str | None, float] = defaultdict(float)
        self.reserved_usd: defaultdict[str | None, float] = defaultdict(float)
        self.admitted: list[IncomingRequest] = []
        self.settled: list[tuple[IncomingRequest, Outcome]] = []
        self.is_broken = self.is_closed = False

    async def admit(self, request: IncomingRequest) -> Grant:
        """Admit the request with the budget's policy."""
        self.admitted.append(request)
        return Reserved(self.policy)

    async def reserve(self, request: IncomingRequest, grant: Grant, cost: ExpectedCost) -> float:
        """Reserve the estimate, or refuse the request."""
        assert isinstance(grant, Reserved)
        assert 0 <= cost.least_usd <= cost.usd
        name = request.key.name
        left_usd = self.usd - self.spent_usd[name] - self.reserved_usd[name]
        if left_usd <= 0 or left_usd < self.estimate_usd * (1 - 1e-9):
            raise AdmissionError("The budget of this key is spent.", retry_after_s=3599.5)
        grant.usd = self.estimate_usd
        self.reserved_usd[name] += grant.usd
        return math.inf

    def settle(self, request: IncomingRequest, grant: Grant, outcome: Outcome) -> None:
        """Replace the reservation by the cost."""
        assert isinstance(grant, Reserved)
        assert not self.is_closed
        self.settled.append((request, outcome))
        self.reserved_usd[request.key.name] -= grant.usd
        if outcome.record is not None:
            self.spent_usd[request.key.name] += outcome.record.actual_cost_usd or 0.0
        if self.is_broken:
            raise RuntimeError("a defect of the hook")

    async def aclose(self) -> None:
        """Note that no settlement may follow."""
        self.is_closed = True

    def last(self) -> Outcome:
        """Return the outcome of the only request, once it is settled."""
        wait_for(lambda: self.settled, "the request is settled")
        assert self.is_balanced()
        ((_, outcome),) = self.settled
        return outcome

    def is_balanced(self) -> bool:
        """Return whether each admitted request was settled once, and nothing is reserved."""
        admitted = Counter(request.id for request in self.admitted)
        settled = Counter(request.id for request, _ in self.settled)
        left_usd = max(map(abs, self.reserved_usd.values()), default=0.0)
        return admitted == settled and max(settled.values(), default=1) == 1 and left_usd < 1e-9


@contextmanager
def gateway(
    budget: Budget, settings: Settings, router: FakeRouter | None = None
) -> Iterator[httpx.Client]:
    """Serve a gateway with a budget, and yield a client without a key."""
    app = create_app(settings, router or FakeRouter(), hooks=budget)
    with served(app) as url, httpx.Client(base_url=url, timeout=WAIT_S) as http:
        yield http
    assert budget.is_closed
    assert budget.is_balanced()


def plain(sandbox: Sandbox) -> Settings:
    """Return settings without retries and fallbacks."""
    return Settings.sandbox(sandbox.base_url, list(FakeRouter().probabilities), upstreams=ONE_TRY)


def with_keys(sandbox: Sandbox) -> Settings:
    """Return settings with two API keys."""
    keys = KeySettings(api={name: SecretStr(key) for name, key in KEYS.items()})
    return plain(sandbox).model_copy(update={"keys": keys})


def bearer(name: str) -> dict[str, str]:
    """Return the header with a key."""
    return {"authorization": f"Bearer {KEYS[name]}"}


def cost_of(answer: httpx.Response) -> float:
    """Return the cost that an answer names."""
    return float(answer.headers["x-switchcraft-cost-usd"])


def test_requests_are_refused_when_the_budget_is_spent(sandbox: Sandbox) -> None:
    """The refusal has the status, the code and the time to wait; no upstream is called.

    Another key has its own budget, and requests that no upstream answers are never refused.
    """
    budget = Budget()
    with gateway(budget, with_keys(sandbox)) as http:
        first = http.post(CHAT, json=BODY, headers=bearer("team-a"))
        wait_for(lambda: budget.spent_usd["team-a"], "the first request is settled")
        assert budget.spent_usd["team-a"] == pytest.approx(cost_of(first))
        budget.usd = budget.spent_usd["team-a"]
        before = sandbox.stats()["requests"]
        refused = http.post(CHAT, json=BODY, headers=bearer("team-a"))
        assert sandbox.stats()["requests"] == before
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "3600"
        assert refused.json()["error"] == {
            "message": "The budget of this key is spent.",
            "type": "insufficient_quota",
            "param": None,
            "code": "insufficient_quota",
        }
        message = {"model": "switchcraft", "max_tokens": 9, "messages": ASK}
        foreign = http.post("/v1/messages", json=message, headers=bearer("team-a"))
        assert (foreign.status_code, foreign.json()["type"]) == (429, "error")
        assert foreign.json()["error"]["details"] == {"error_code": "insufficient_quota"}
        assert http.get("/v1/models", headers=bearer("team-a")).status_code == 200
        assert http.post(CHAT, json=BODY, headers=bearer("team-b")).status_code == 200


@pytest.mark.parametrize("reserves", [True, False])
def test_concurrent_requests_overspend_by_what_is_in_flight(
    sandbox: Sandbox, reserves: bool
) -> None:
    """With reservations nothing is overspent; without them, at most what was in flight.

    In both cases, no request is refused while money is left.
    """
    budget, threads, affordable = Budget(), 8, 10
    with gateway(budget, plain(sandbox)) as http:
        cost_usd = cost_of(http.post(CHAT, json=BODY))
        wait_for(budget.is_balanced, "the first request is settled")
        budget.usd = budget.spent_usd[None] + affordable * cost_usd
        budget.estimate_usd = cost_usd if reserves else 0.0

        def ask(_: int) -> int:
            return http.post(CHAT, json=BODY, headers={"x-sandbox": "delay_s=0.02"}).status_code

        with ThreadPoolExecutor(threads) as pool:
            statuses = Counter(pool.map(ask, range(40)))
    assert set(statuses) == {200, 429}
    assert len(budget.admitted) == 1 + statuses.total()
    if reserves:
        assert statuses[200] == affordable
        assert budget.spent_usd[None] <= budget.usd * (1 + 1e-9)
    else:
        assert affordable <= statuses[200] < affordable + threads
        assert budget.spent_usd[None] <= budget.usd + threads * cost_usd


@pytest.mark.parametrize(
    ("body", "faults", "status", "has_record"),
    [
        (BODY, "", 200, True),
        (BODY | {"stream": True}, "", 200, True),
        (BODY | {"model": "small"}, "", 200, True),
        (BODY, "status=500", 500, True),
        (BODY, "cut_after=0", 502, True),
        (BODY | {"stream": True}, "cut_after=2", 200, True),
        (BODY | {"model": "unknown"}, "", 404, False),
        (BODY | {"model": "switchcraft:none"}, "", 400, False),
    ],
)
def test_every_ending_is_settled_once(
    sandbox: Sandbox, body: dict[str, Any], faults: str, status: int, has_record: bool
) -> None:
    """Answers, streams, failed upstreams and requests that cannot be planned are settled once."""
    budget = Budget()
    with gateway(budget, plain(sandbox)) as http:
        answer = http.post(CHAT, json=body, headers={"x-sandbox": faults} if faults else {})
        assert answer.status_code == status
        outcome = budget.last()
    assert (outcome.status, outcome.record is not None) == (status, has_record)
    if outcome.record is not None and not faults:
        assert outcome.record.actual_cost_usd
        assert outcome.record.prompt_tokens


@pytest.mark.parametrize("faults", ["hang", "chunk_delay_s=60"])
def test_requests_of_clients_that_leave_are_settled_once(sandbox: Sandbox, faults: str) -> None:
    """A client that leaves before or within its answer pays for what it received."""
    budget, before = Budget(), sandbox.stats()
    with gateway(budget, plain(sandbox)) as http:
        leave(str(http.base_url), faults, sandbox, before)
        outcome = budget.last()
    assert outcome.record is not None
    assert outcome.record.ending == "client_left"
    assert outcome.record.actual_cost_usd


def leave(url: str, faults: str, sandbox: Sandbox, before: dict[str, Any]) -> None:
    """Ask for a stream, and disconnect when the upstream has the request."""
    address = urlsplit(url)
    body = json.dumps(BODY | {"stream": True}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\nx-sandbox: {faults}\r\n"
    with socket.create_connection((address.hostname, address.port), timeout=WAIT_S) as connection:
        connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        if faults == "hang":
            wait_for(lambda: sandbox.stats()["in_flight"] > before["in_flight"], "it is asked")
        else:
            assert connection.recv(1000).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("stream", [False, True])
def test_verified_requests_are_settled_with_all_candidates(sandbox: Sandbox, stream: bool) -> None:
    """The settlement has each candidate's cost, their sum, and the policy."""
    budget = Budget()
    settings = sandbox_settings(sandbox.base_url)
    with gateway(budget, settings, VerifyingRouter()) as http:
        assert http.post(CHAT, json=BODY | {"stream": stream}, headers=VERIFIED).is_success
        record = budget.last().record
    assert record is not None
    assert record.candidates is not None
    costs_usd = [candidate.cost_usd or 0.0 for candidate in record.candidates]
    assert (len(costs_usd), record.reason) == (3, "verified")
    assert min(costs_usd) > 0
    assert budget.spent_usd[None] == pytest.approx(sum(costs_usd))
    assert budget.admitted[0].policy == "verified"


def test_requests_in_flight_are_settled_at_the_shutdown(sandbox: Sandbox) -> None:
    """A request that the shutdown cuts off is settled before the hooks are closed."""
    budget, before = Budget(), sandbox.stats()
    server = ServerSettings(shutdown_timeout_s=1)
    app = create_app(
        plain(sandbox).model_copy(update={"server": server}), FakeRouter(), hooks=budget
    )
    state: Gateway = app.state.gateway
    listener, ready = socket.create_server(("127.0.0.1", 0)), threading.Event()
    draining = DrainingServer(uvicorn_config(app, server), state.drain, ready.set)
    thread = threading.Thread(target=draining.run, args=([listener],), daemon=True)
    thread.start()
    assert ready.wait(WAIT_S)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}{CHAT}"
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(
            lambda: httpx.post(url, json=BODY, headers={"x-sandbox": "hang"}, timeout=WAIT_S)
        )
        wait_for(lambda: sandbox.stats()["in_flight"] > before["in_flight"], "it is asked")
        draining.should_exit = True
        assert asked.result().status_code == 503
    thread.join(WAIT_S)
    assert budget.is_closed
    assert budget.last().record is not None


def test_admission_may_change_the_policy(sandbox: Sandbox) -> None:
    """The granted policy applies in place of the header's, and the response says so."""
    budget = Budget(policy="quality")
    with gateway(budget, plain(sandbox)) as http:
        answer = http.post(CHAT, json=BODY, headers={"x-switchcraft-policy": "economy"})
        assert answer.headers["x-switchcraft-policy"].startswith("quality")
        assert answer.headers["x-switchcraft-model"] == "large"
        assert budget.admitted[0].policy == "economy"
        budget.policy = None
        answer = http.post(CHAT, json=BODY, headers={"x-switchcraft-policy": "economy"})
        assert answer.headers["x-switchcraft-model"] == "small"


def test_passed_requests_are_admitted_and_settled(sandbox: Sandbox) -> None:
    """A request that is passed through has no record, because its cost is unknown."""
    budget = Budget()
    with gateway(budget, sandbox_settings(sandbox.base_url, pass_through="large")) as http:
        answer = http.post("/v1/images/generations", json={"prompt": "a cat"})
        outcome = budget.last()
        assert (outcome.status, outcome.record) == (answer.status_code, None)
        (request,) = budget.admitted
        assert (request.method, request.path) == ("POST", "/images/generations")
        budget.usd = 0.0
        assert http.post("/v1/images/generations", json={"prompt": "a"}).status_code == 429


def test_a_settlement_that_fails_reaches_no_client(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    """The client gets its answer, and the defect is logged with the request's id."""
    budget = Budget()
    budget.is_broken = True
    with gateway(budget, plain(sandbox)) as http:
        assert http.post(CHAT, json=BODY).status_code == 200
        budget.last()
        assert http.post(CHAT, json=BODY).status_code == 200
    assert f"settlement failed: id={budget.admitted[0].id} status=200" in caplog.text
