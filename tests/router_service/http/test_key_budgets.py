"""Budgets of keys over HTTP: cheaper models for the rest, and refusals that clients understand."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from pydantic import SecretStr

from router_service.access.key import BudgetPeriod, Permission
from router_service.core.keys import hashed, new_key
from router_service.core.money import NANO, to_nusd
from router_service.runtime.gateway import Gateway
from router_service.serving.app import create_app
from router_service.settings import BudgetSettings, KeySettings
from tests.bodies import ASK, BODY, CHAT
from tests.fakes import FakeRouter, VerifyingRouter
from tests.gateways import VERIFIED, metric, record_of, sandbox_settings
from tests.serving import WAIT_S, Sandbox, served, wait_for
from tests.stored_keys import add_key, bearer

LARGE_USD, MEDIUM_USD, SMALL_USD = 0.0011, 0.00022, 0.00011
"""What the fake router's models are expected to cost."""
METRICS_KEY = new_key()
LEFT = 'switchcraft_requests_total{model="none",policy="none",release="none",status="499"}'
QUALITY = {"x-switchcraft-policy": "quality"}


@dataclass
class Served:
    """A gateway with a database in memory, and a client without a key."""

    http: httpx.Client
    gateway: Gateway

    def metric(self, series: str) -> float:
        """Return the value of a series."""
        with httpx.Client(base_url=self.http.base_url, headers=bearer(METRICS_KEY)) as http:
            return metric(http, series)

    def key(self, name: str, usd: float, **columns: object) -> dict[str, str]:
        """Add a key with a monthly budget; return the header with it, once it is valid."""
        budget = {"budget_nusd": to_nusd(usd), "budget_period": BudgetPeriod.MONTH.value}
        secret = add_key(self.gateway.database.database, name, **budget, **columns)
        headers = bearer(secret)
        wait_for(lambda: self.http.get("/v1/models", headers=headers).is_success, "it is valid")
        return headers


@contextmanager
def serve(
    sandbox: Sandbox,
    router: FakeRouter | None = None,
    max_wait_s: float = 5.0,
    pass_through: str | None = None,
) -> Iterator[Served]:
    """Serve a gateway."""
    budgets = BudgetSettings(cheaper_first=False, max_wait_s=max_wait_s)
    configured = sandbox_settings(sandbox.base_url, pass_through=pass_through)
    keys = KeySettings(metrics=SecretStr(hashed(METRICS_KEY)))
    changes = {"budgets": budgets, "keys": keys}
    app = create_app(configured.model_copy(update=changes), router or FakeRouter())
    with served(app) as url, httpx.Client(base_url=url, timeout=WAIT_S) as http:
        yield Served(http, app.state.gateway)


@pytest.fixture(scope="module")
def running(sandbox: Sandbox) -> Iterator[Served]:
    """Yield a gateway."""
    with serve(sandbox, pass_through="large") as found:
        yield found


def spend_all(found: Served, name: str) -> dict[str, str]:
    """Return the header of a key whose budget is spent."""
    return found.key(name, 0.0)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, BODY),
        ("/v1/responses", {"model": "switchcraft", "input": "Hi"}),
        ("/v1/embeddings", {"model": "small", "input": "Hi"}),
    ],
)
def test_spent_budget_has_openais_error(
    running: Served, path: str, body: dict[str, Any], sandbox: Sandbox
) -> None:
    """OpenAI's clients read the code, and do not repeat the request."""
    headers = spend_all(running, f"openai{path}")
    before = sandbox.stats()["requests"]
    answer = running.http.post(path, json=body, headers=headers)
    assert sandbox.stats()["requests"] == before
    assert answer.status_code == 429
    assert answer.headers["x-should-retry"] == "false"
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("insufficient_quota", "insufficient_quota")
    assert "(0 USD per month) is spent. It starts again at" in error["message"]


def test_spent_budget_has_anthropics_error(running: Served) -> None:
    """The error of the Messages API names the code in its details."""
    headers = spend_all(running, "anthropic")
    body = {"model": "switchcraft", "max_tokens": 9, "messages": ASK}
    answer = running.http.post("/v1/messages", json=body, headers=headers)
    assert (answer.status_code, answer.json()["type"]) == (429, "error")
    assert answer.headers["x-should-retry"] == "false"
    assert answer.json()["error"]["details"] == {"error_code": "insufficient_quota"}


def test_rest_of_a_budget_is_for_cheaper_models(running: Served) -> None:
    """If the policy's choice does not fit, the policy chooses among the models that do."""
    headers = running.key("rest", (SMALL_USD + LARGE_USD) / 2) | QUALITY
    answer = running.http.post(CHAT, json=BODY, headers=headers)
    assert answer.headers["x-switchcraft-model"] == "medium"
    assert answer.headers["x-switchcraft-reason"] == "budget"
    assert (
        "is the policy's choice among the models that the rest"
        in (answer.headers["x-switchcraft-why"])
    )
    rich = running.key("rich", 1.0) | QUALITY
    answer = running.http.post(CHAT, json=BODY, headers=rich)
    assert answer.headers["x-switchcraft-model"] == "large"
    assert answer.headers["x-switchcraft-reason"] != "budget"


def test_named_models_stay(running: Served) -> None:
    """Requests without tools get a model that fits; a model that a request names stays."""
    chat = {"model": "switchcraft", "messages": ASK}
    headers = running.key("chat", 0.0002)
    answer = running.http.post(CHAT, json=chat, headers=headers)
    assert answer.headers["x-switchcraft-model"] == "small"
    answer = running.http.post(CHAT, json=chat | {"model": "large"}, headers=headers)
    assert answer.headers["x-switchcraft-model"] == "large"


def test_spending_is_exact(running: Served) -> None:
    """The ledger has the cost of each answer, rounded once."""
    headers = running.key("exact", 1.0)
    costs = 0
    for stream in (False, True):
        answer = running.http.post(CHAT, json=BODY | {"stream": stream}, headers=headers)
        record = record_of_key(running, answer, headers)
        costs += to_nusd(record["actual_cost_usd"])
    secret = headers["authorization"].removeprefix("Bearer ").encode()
    key = running.gateway.engine.keys.find(secret, Permission.CALL)
    assert key is not None
    (balance,) = running.gateway.budgets.states(key)
    assert balance.spent_usd == costs / NANO
    assert balance.reserved_usd == 0


def record_of_key(found: Served, answer: httpx.Response, headers: dict[str, str]) -> dict[str, Any]:
    """Return the decision record of a key's own answer."""
    with httpx.Client(base_url=found.http.base_url, headers=headers, timeout=WAIT_S) as http:
        return record_of(http, answer)


def test_verified_answers_stay_within_the_rest(sandbox: Sandbox) -> None:
    """Candidates are asked only while their costs fit into what is left of the budget."""
    with serve(sandbox, VerifyingRouter()) as found:
        rich = found.key("rich", 1.0) | VERIFIED
        answer = found.http.post(CHAT, json=BODY, headers=rich)
        assert answer.headers["x-switchcraft-candidates"] == "3"
        poor = found.key("poor", SMALL_USD + MEDIUM_USD) | VERIFIED
        answer = found.http.post(CHAT, json=BODY, headers=poor)
        assert answer.status_code == 200
        assert answer.headers["x-switchcraft-candidates"] in {"1", "2"}
        assert answer.headers["x-switchcraft-model"] != "large"


def test_passed_requests_need_a_budget_that_is_not_spent(running: Served) -> None:
    """The cost of a passed request is unknown; it is refused only if nothing is left."""
    headers = running.key("passed", 1e-9)
    path, body = "/v1/images/generations", {"prompt": "a cat"}
    assert running.http.post(path, json=body, headers=headers).status_code != 429
    nothing = running.key("nothing", 0.0)
    refused = running.http.post(path, json=body, headers=nothing)
    assert refused.status_code == 429
    assert "is spent" in refused.json()["error"]["message"]


def test_requests_wait_while_the_rest_is_reserved(sandbox: Sandbox) -> None:
    """The second request gets `rate_limit_exceeded`; a third one leaves and reserves nothing."""
    with serve(sandbox, max_wait_s=0.5) as found:
        headers = found.key("one", 0.0003)
        url = urlsplit(str(found.http.base_url))
        slow = BODY | {"stream": True, "model": "small"}
        with found.http.stream(
            "POST", CHAT, json=slow, headers=headers | {"x-sandbox": "hang_after=2"}
        ) as first:
            assert first.status_code == 200
            answer = found.http.post(CHAT, json=BODY, headers=headers)
            assert answer.status_code == 429
            assert answer.json()["error"]["code"] == "rate_limit_exceeded"
            assert answer.headers["retry-after"]
            assert "x-should-retry" not in answer.headers
            before = found.metric(LEFT)
            body = json.dumps(BODY).encode()
            head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
            head += f"authorization: {headers['authorization']}\r\n\r\n"
            with socket.create_connection((url.hostname, url.port), timeout=WAIT_S) as connection:
                connection.sendall(head.encode() + body)
            wait_for(lambda: found.metric(LEFT) > before, "the client has left")
        wait_for(
            lambda: found.http.post(CHAT, json=BODY, headers=headers).status_code == 200,
            "the budget is free again",
        )
