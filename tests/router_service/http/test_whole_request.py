"""Limits of the whole request: models asked, time and money, with retries and fallback included."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from router_service.policies.costs import Price
from router_service.sandbox.provider import run_in_thread
from router_service.settings import (
    BreakerSettings,
    RetrySettings,
    Settings,
    Timeouts,
    UpstreamSettings,
)
from tests.bodies import BODY, CHAT
from tests.fakes import VerifyingRouter
from tests.gateways import (
    NO_RETRIES,
    VerifyingGateway,
    listed_requests,
    metric,
    sandbox_settings,
    verifying,
)
from tests.serving import WAIT_S, Sandbox, wait_for

ARMS = ("small", "medium", "large")
TOTAL_S = 1.0
SLACK_S = 0.7
"""Time beyond a limit that a busy machine may add."""

TWO_RETRIES = UpstreamSettings(
    retries=RetrySettings(max_retries=2, budget_floor_per_s=1000, backoff_s=0.001),
    breaker=BreakerSettings(allowed_fails=1000, cooldown_s=0.01, max_cooldown_s=0.01),
)


def with_upstreams(settings: Settings, **changes: object) -> Settings:
    """Return settings whose deployments have these values, or whose upstreams have."""
    upstreams = settings.upstreams.model_copy(update=changes)
    models = tuple(
        model.model_copy(
            update={
                "deployments": tuple(
                    place.model_copy(update={"timeouts": upstreams.timeouts})
                    for place in model.deployments
                )
            }
        )
        for model in settings.models
    )
    return settings.model_copy(update={"models": models, "upstreams": upstreams})


@pytest.fixture(scope="module")
def shared() -> Iterator[VerifyingGateway]:
    """Yield a gateway with two retries for each model, and a second in all for a request."""
    with run_in_thread() as url:
        settings = sandbox_settings(url, TWO_RETRIES)
        settings = with_upstreams(settings, timeouts=Timeouts(total_s=TOTAL_S))
        with verifying(url, settings) as gateway:
            yield gateway


@pytest.fixture
def house(shared: VerifyingGateway) -> Iterator[VerifyingGateway]:
    """Yield the shared gateway, and restore the sandbox afterwards."""
    shared.router.is_broken = False
    yield shared
    for model in ARMS:
        shared.sandbox.set_faults(model, "")


def calls(sandbox: Sandbox) -> dict[str, int]:
    """Return how often each model was called."""
    counts: dict[str, dict[str, int]] = sandbox.stats()["by_model"]
    return {model: each["requests"] for model, each in counts.items()}


def asked(sandbox: Sandbox, before: dict[str, int]) -> dict[str, int]:
    """Return how often each model was called since `before`, without those that were not."""
    counts = {model: count - before.get(model, 0) for model, count in calls(sandbox).items()}
    return {model: count for model, count in counts.items() if count}


@pytest.mark.parametrize("limit", [1, 2, 3])
@pytest.mark.parametrize("fault", ["status=500", "malformed", "cut_after=0"])
def test_limit_of_candidates_counts_every_model_that_is_asked(
    house: VerifyingGateway, fault: str, limit: int
) -> None:
    """However models fail, at most `max_candidates` get the request, each 1 + `max_retries` times.

    No further model answers instead of the candidates.
    """
    for model in ARMS:
        house.sandbox.set_faults(model, fault)
    before = calls(house.sandbox)
    response = house.ask(x_switchcraft_max_candidates=str(limit))
    assert response.status_code >= 500
    counts = asked(house.sandbox, before)
    assert set(counts) == set(ARMS[:limit])
    assert max(counts.values()) <= 3
    assert response.headers["x-switchcraft-attempts"] == str(sum(counts.values()))


def test_a_model_that_was_not_reached_is_replaced() -> None:
    """An arm whose upstream did not get the request does not count, and is not in the record."""
    with run_in_thread() as url:
        settings = sandbox_settings(url)
        small, *others = settings.models
        with socket.create_server(("127.0.0.1", 0)) as closed:
            port = closed.getsockname()[1]
        nowhere = small.deployments[0].model_copy(
            update={"base_url": f"http://127.0.0.1:{port}/v1"}
        )
        models = (small.model_copy(update={"deployments": (nowhere,)}), *others)
        with verifying(url, settings.model_copy(update={"models": models})) as gateway:
            response = gateway.ask(x_switchcraft_max_candidates="1")
            record = gateway.record(response)
            series = 'switchcraft_candidates_total{arm="small"'
            assert metric(gateway.http, series) == 0
            assert metric(gateway.http, 'switchcraft_upstream_seconds_count{model="small"}') == 0
    assert response.headers["x-switchcraft-model"] == "medium"
    assert response.headers["x-switchcraft-candidates"] == "1"
    assert response.headers["x-switchcraft-attempts"] == "2"
    assert [candidate["arm"] for candidate in record["candidates"]] == ["medium"]


@pytest.mark.parametrize("policy", ["verified", "theta=0.2"])
@pytest.mark.parametrize("stream", [False, True])
def test_total_time_is_one_deadline_for_all_attempts(
    house: VerifyingGateway, policy: str, stream: bool
) -> None:
    """If every model hangs, candidates, retries and fallbacks share `timeouts.total_s`."""
    for model in ARMS:
        house.sandbox.set_faults(model, "hang")
    started_s = time.monotonic()
    body = BODY | {"stream": stream}
    response = house.http.post(CHAT, json=body, headers={"x-switchcraft-policy": policy})
    assert time.monotonic() - started_s < TOTAL_S + SLACK_S
    assert (response.status_code, response.json()["error"]["code"]) == (504, "upstream_timeout")


def test_cost_limit_covers_the_fallback() -> None:
    """If the verifier cannot be asked, only a model within the cost limit answers."""

    class NeverReady(VerifyingRouter):
        def next_step(self, *_: object) -> None:  # pyrefly: ignore[bad-override]
            raise RuntimeError("a defect")

    with run_in_thread() as url, verifying(url, router=NeverReady()) as gateway:
        for model in ("small", "medium"):
            gateway.sandbox.set_faults(model, "status=500")
        # Only `large` is expected to cost more.
        response = gateway.ask(x_switchcraft_max_cost_usd="0.0005")
        assert response.status_code == 500
        assert set(calls(gateway.sandbox)) == {"small", "medium"}
        before = calls(gateway.sandbox)
        response = gateway.ask(x_switchcraft_max_candidates="1")
        assert response.status_code == 500
        assert len(asked(gateway.sandbox, before)) == 1


@contextmanager
def one_connection(router: VerifyingRouter) -> Iterator[VerifyingGateway]:
    """Serve a gateway whose models cost money for their time, with one connection to each sandbox.

    `medium` and `large` are in a sandbox of their own, which always hangs.
    """
    with run_in_thread() as url, run_in_thread() as other_url:
        for arm in ("medium", "large"):
            Sandbox(other_url).set_faults(arm, "hang")
        settings = sandbox_settings(url, NO_RETRIES.model_copy(update={"max_connections": 1}))
        price = Price(usd_per_hour=36, input_usd_per_mtok=1, output_usd_per_mtok=1)
        small, *others = (each.model_copy(update={"price": price}) for each in settings.models)
        away = [
            each.model_copy(
                update={
                    "deployments": (each.deployments[0].model_copy(update={"base_url": other_url}),)
                }
            )
            for each in others
        ]
        settings = settings.model_copy(update={"models": (small, *away)})
        with verifying(url, settings, router) as gateway:
            yield gateway


@contextmanager
def request_in_flight(gateway: VerifyingGateway, policy: str, model: str) -> Iterator[None]:
    """Send a request, and leave before its answer; yield while it is in flight."""
    address = urlsplit(str(gateway.http.base_url))
    body = json.dumps(BODY | {"model": model}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\nx-switchcraft-policy: {policy}\r\n"
    message = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
    series = "switchcraft_requests_in_flight"
    before = metric(gateway.http, series)
    with socket.create_connection((address.hostname, address.port), timeout=WAIT_S) as connection:
        connection.sendall(message)
        wait_for(lambda: metric(gateway.http, series) > before, "the request is in flight")
        yield


@pytest.mark.parametrize("policy", ["verified", "theta=0.2"])
def test_request_that_waits_for_a_connection_when_its_client_leaves_is_not_billed(
    policy: str,
) -> None:
    """A client that leaves before anything was sent pays neither for tokens nor for time."""
    router = VerifyingRouter((("medium",),))
    with one_connection(router) as gateway, request_in_flight(gateway, policy, "medium"):
        with request_in_flight(gateway, policy, "switchcraft" if policy == "verified" else "large"):
            pass
        (row,) = listed_requests(gateway.http)
        record = gateway.http.get(f"/v1/decisions/{row['id']}").json()
        assert (record["ending"], record["attempts"]) == ("client_left", 0)
        assert not record["candidates"]
        assert record["actual_cost_usd"] is None
        assert record["prompt_tokens"] is None
        assert metric(gateway.http, "switchcraft_cost_usd_total{") == 0
        assert metric(gateway.http, "switchcraft_upstream_seconds_count{") == 0
